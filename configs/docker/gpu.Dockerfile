# The server on NVIDIA GPUs: `docker build -f configs/docker/gpu.Dockerfile --build-arg PADDLE_INDEX=… -t fastdeploy-lp:gpu .`
# PADDLE_INDEX is PaddlePaddle's package index for CUDA 12.6, which its installation page names.
FROM nvidia/cuda:12.6.3-cudnn-runtime-ubuntu22.04
ARG PADDLE_INDEX
RUN test -n "$PADDLE_INDEX" || { echo "--build-arg PADDLE_INDEX=… is needed: the public index has no CUDA build"; exit 1; }
RUN apt-get update \
    && apt-get install --yes --no-install-recommends python3 python3-venv g++ libgomp1 wget \
    && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 serve
WORKDIR /src
COPY setup.py pyproject.toml README.md ./
COPY fastdeploy_lp fastdeploy_lp
RUN python3 -m venv /opt/fastdeploy-lp \
    && /opt/fastdeploy-lp/bin/pip install --no-cache-dir --extra-index-url "$PADDLE_INDEX" '.[gpu,ray]'
ENV PATH=/opt/fastdeploy-lp/bin:$PATH FASTDEPLOY_LP_PLATFORM=gpu
USER 10001
WORKDIR /home/serve
EXPOSE 8000
ENTRYPOINT ["fastdeploy-lp", "serve", "--host", "0.0.0.0", "--port", "8000"]
