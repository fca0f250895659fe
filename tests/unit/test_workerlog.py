"""own_traceback and the log's reader, on what TorchServe 0.12.0 really writes."""

from __future__ import annotations

from pathlib import Path

from batchline.workerlog import CHAINED, DIED, NO_CAUSE, NO_TRACEBACK, TRACEBACK, WorkerLog, own_traceback

DISGUISE = "ModuleNotFoundError: No module named 'ts.torch_handler.handler'"


def test_runtime_error_is_the_first_traceback() -> None:
    lines = ["Failed to load model m", TRACEBACK, "RuntimeError: bad weights", DIED, TRACEBACK, "RuntimeError: 500 - Unknown exception"]
    assert own_traceback(lines) == f"{TRACEBACK}\nRuntimeError: bad weights"


def test_swallowed_import_error_is_uncovered() -> None:
    lines = [DIED, TRACEBACK, "  import cv2", "ImportError: no cv2", "", CHAINED, "", TRACEBACK, DISGUISE]
    assert own_traceback(lines).splitlines() == [TRACEBACK, "  import cv2", "ImportError: no cv2"]


def test_disguise_alone_says_where_to_look() -> None:
    assert own_traceback([DIED, TRACEBACK, DISGUISE]).endswith(NO_CAUSE)


def test_no_traceback_shows_the_last_lines() -> None:
    assert own_traceback(["loading"]) == f"loading\n{NO_TRACEBACK}"


def test_lines_of_one_process_of_one_worker_of_this_run(tmp_path: Path) -> None:
    log, prefix = tmp_path / "model_log.log", "2026-01-31T12:00:00,000 [INFO ] W-9001-a_long_name_cut_at_25_cha-stdout MODEL_LOG - "
    log.write_text(f"{prefix}of yesterday\n")
    reader = WorkerLog(tmp_path)
    other = prefix.replace("9001", "9002")
    new = [f"{prefix}s_name_part0=/t/.ts.sock, s_name_part1=9001, pid=7", f"{prefix}first", f"{other}stranger"]
    new += [f"{prefix}s_name_part0=/t/.ts.sock, s_name_part1=9001, pid=8", f"{prefix}second"]
    with log.open("a") as file:
        file.write("\n".join(new) + "\n")
    assert reader.worker_lines("9001", 7)[1:] == ["first"]
    assert reader.worker_lines("9001", 8)[1:] == ["second"]
    assert len(reader.worker_lines("9001")) == 4


def test_reason_for_a_missing_archive(tmp_path: Path) -> None:
    reader = WorkerLog(tmp_path)
    line = "2026-01-31T12:00:00,000 [WARN ] main org.pytorch.serve.ModelServer - Failed to load model: absent.mar"
    (tmp_path / "ts_log.log").write_text(f"{line}\norg.x.ModelNotFoundException: Model not found at: absent.mar\n")
    assert reader.unregistered() == {"absent.mar": "Model not found at: absent.mar"}
    assert reader.read("model_log.log") == ""
