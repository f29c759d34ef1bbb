"""Uploads in a selection and in a chain: their place, their end, and the store's bounds."""

from __future__ import annotations

import gc
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path

import pytest
from support.masks import CHAIN
from support.sequences import request, run_to_end
from support.server import server_environment
from support.tiny import tiny_fd_config
from support.wasm import NO_REPEATS, wat

from fastdeploy_lp.entrypoints.openai.uploads import store as stores
from fastdeploy_lp.entrypoints.openai.uploads.store import StoreFullError, UploadStore
from fastdeploy_lp.logits_processor import (
    LogitsProcessorChain,
    RequestArgsError,
    RequestArgsValidator,
    Selection,
    load_processors,
)
from fastdeploy_lp.logits_processor.arguments.request import Imposed
from fastdeploy_lp.logits_processor.chain import brought
from fastdeploy_lp.request.sampling_params import SamplingParams
from fastdeploy_lp.stats import QUARANTINED
from fastdeploy_lp.worker.engine_core import EngineCore

KILLED = """
import os, signal, sys
from pathlib import Path
from fastdeploy_lp.entrypoints.openai.uploads.store import UploadStore
store = UploadStore(None)
print(store.add("", "mine", Path(sys.argv[1]).read_bytes()).spec.partition("=")[2], flush=True)
os.kill(os.getpid(), signal.SIGKILL)
"""
DECLARED = load_processors(list(CHAIN), mandatory=["VllmMask"])
NAMES = [each.name for each in DECLARED]
VALIDATOR = RequestArgsValidator(DECLARED, 512)
KEY, OTHER = "a" * 64, "b" * 64


@pytest.fixture
def store(tmp_path: Path) -> UploadStore:
    return UploadStore(str(tmp_path / "store"))


def test_an_upload_runs_before_what_the_operator_imposes(store: UploadStore) -> None:
    mine = store.add(KEY, "mine", NO_REPEATS.read_bytes()).name
    imposed = Imposed(forced={"RowMask": {}}, brought=store.specs_of(KEY))
    for chosen in ({mine: {}}, [mine], [{"name": "early", "params": {}}, {"name": mine}], ["early", mine]):
        entries = chosen if isinstance(chosen, dict) else [e if isinstance(e, dict) else {"name": e} for e in chosen]
        selection = VALIDATOR.validate_imposed(SamplingParams(logits_processors=entries), imposed)
        order = selection.order
        assert order is not None
        assert order.index(mine) < order.index("VllmMask")
        assert order.index(mine) < order.index("RowMask")
        assert selection.brought == {mine: store.specs_of(KEY)[mine]}
    after = SamplingParams(logits_processors=[{"name": "VllmMask"}, {"name": mine}])
    with pytest.raises(RequestArgsError, match="VllmMask is mandatory and keeps its declared place"):
        VALIDATOR.validate_imposed(after, imposed)


def test_a_request_without_uploads_is_as_before(store: UploadStore) -> None:
    store.add(KEY, "mine", NO_REPEATS.read_bytes())
    params = SamplingParams(logits_processors={"RowMask": {}})
    imposed = Imposed(brought=store.specs_of(KEY))
    assert VALIDATOR.validate_imposed(params, imposed) == VALIDATOR.validate(params)


def engine(share: float = 0.05) -> EngineCore:
    config = tiny_fd_config(max_num_seqs=4, max_model_len=64)
    config = replace(config, scheduler_config=replace(config.scheduler_config, upload_time_share=share))
    return EngineCore(config, LogitsProcessorChain(load_processors(["LogitBiasLogitsProcessor"]), config))


def using(store: UploadStore, name: str, **args: float) -> Selection:
    return Selection(named={name: dict(args)}, order=(name,), brought={name: store.specs_of(KEY)[name]})


def test_a_chain_declares_an_upload_for_its_first_request_and_forgets_the_least_recent(
    store: UploadStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(brought, "MAX_BROUGHT", 2)
    names = [store.add(KEY, f"mine{index}", NO_REPEATS.read_bytes()).name for index in range(4)]
    core = engine()
    before = len(core.runner.chain._groups.all)
    ran = [
        run_to_end(core, [request("r", [5, 6], max_tokens=6, selection=using(store, name, penalty=100))])["r"]
        for name in names
    ]
    assert len({tuple(each.token_ids) for each in ran}) == 1
    assert len(set(ran[0].token_ids)) == 6
    assert [name for name in core.runner.chain.stats if name in names] == names[2:]
    assert len(core.runner.chain._groups.all) == before + 2


@pytest.mark.parametrize("share", [1e-9, 0.05, 1.0])
def test_tokens_do_not_depend_on_the_time_that_uploads_have(store: UploadStore, share: float) -> None:
    name = store.add(KEY, "mine", NO_REPEATS.read_bytes()).name
    uses = [using(store, name, penalty=penalty) for penalty in (1, 100)]
    requests = [
        request("plain", [7, 8], max_tokens=40),
        *(request(f"r{at}", [5, 6], max_tokens=9, selection=use, seed=3) for at, use in enumerate(uses)),
        request("later", [5, 6], max_tokens=9, selection=uses[0], seed=3),
    ]
    alone = {each.request_id: run_to_end(engine(), [each])[each.request_id] for each in requests}
    assert run_to_end(engine(share), requests) == alone


def test_an_upload_that_was_deleted_meanwhile_fails_its_request(store: UploadStore) -> None:
    name = store.add(KEY, "gone", wat()).name
    selection = using(store, name)
    store.remove(KEY, name)
    from fastdeploy_lp.logits_processor.registry import load_brought

    load_brought.cache_clear()
    core = engine()
    core.add(request("r", [5, 6], max_tokens=6, selection=selection))
    (step,) = core.finish_preparing()
    assert "cannot be read: No such file or directory" in str(step.error)


def test_the_quarantine_of_an_upload_outlives_its_worker(store: UploadStore) -> None:
    from fastdeploy_lp.logits_processor.quarantine import Quarantine

    name = store.add(KEY, "mine", NO_REPEATS.read_bytes()).name
    config = tiny_fd_config(max_num_seqs=4, max_model_len=64)
    chain = LogitsProcessorChain(load_processors([]), config, quarantine=Quarantine({name: "it failed"}))
    core = EngineCore(config, chain)
    core.add(request("r", [5, 6], max_tokens=6, selection=using(store, name)))
    steps = core.finish_preparing()
    while core.has_work:
        steps += core.step().steps
    assert steps[-1].unavailable
    assert core.runner.chain.stats[name].state == QUARANTINED
    core.reset_processor(name)
    assert "r" in run_to_end(core, [request("r", [5, 6], max_tokens=2, selection=using(store, name))])


def test_the_store_has_bounds(store: UploadStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stores, "MAX_UPLOADS_EACH", 2)
    monkeypatch.setattr(stores, "MAX_BROUGHT", 3)
    for index in range(2):
        store.add(KEY, f"mine{index}", wat())
    with pytest.raises(StoreFullError, match="there are 2 uploads of this key"):
        store.add(KEY, "more", wat())
    store.add(KEY, "mine0", wat())
    store.add(OTHER, "mine0", wat())
    with pytest.raises(StoreFullError, match="keeps 3 uploads of all keys"):
        store.add(OTHER, "mine1", wat())
    with pytest.raises(KeyError):
        store.remove(OTHER, next(iter(store.of(KEY))))
    store.remove(KEY, next(iter(store.of(KEY))))
    store.add(OTHER, "mine1", wat())


def test_a_directory_that_others_may_write_to_is_refused(tmp_path: Path) -> None:
    tmp_path.chmod(0o777)
    with pytest.raises(ValueError, match=r"^upload_store: .* no other may write to it"):
        UploadStore(str(tmp_path))


def test_temporary_uploads_end_with_their_server_also_if_it_is_killed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    environment = server_environment() | {"TMPDIR": str(tmp_path)}
    living = UploadStore(None)
    # Returns once the process that removes the folder has closed its output, too.
    program = [sys.executable, "-c", KILLED, str(NO_REPEATS)]
    killed = subprocess.run(program, capture_output=True, text=True, env=environment)
    assert killed.stderr == ""
    path = Path(killed.stdout.strip())
    assert path.parent.parent.parent == tmp_path
    assert not path.parent.parent.exists()
    assert Path(living.add(KEY, "mine", wat()).spec.partition("=")[2]).exists()
    del living
    gc.collect()
    assert list(tmp_path.iterdir()) == []


def test_files_that_are_no_uploads_are_left_out(store: UploadStore, tmp_path: Path) -> None:
    kept = store.add(KEY, "mine", NO_REPEATS.read_bytes()).name
    for place in ("mine", f"{KEY[:-1]}c"):
        (tmp_path / "store" / place).mkdir()
        (tmp_path / "store" / place / f"{kept}.wasm").write_bytes(NO_REPEATS.read_bytes())
    again = UploadStore(str(tmp_path / "store"))
    assert list(again.of(KEY)) == [kept]
    assert sum(map(len, again._uploads.values())) == 1
