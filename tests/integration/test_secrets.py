"""Secrets in the page's environment are in no file of a run, including stack dumps."""

from __future__ import annotations

from tests.harness import Launcher, create_run
from trainers.engines.local import notify

SECRET = "hunter2-7f3a9c"
# No server listens there: the error of the notification must not contain the URL either.
ENVIRONMENT = {
    notify.VARIABLE: f"json://someone:{SECRET}@127.0.0.1:9/{SECRET} nonsense://{SECRET}",
    "HTTPS_PROXY": f"http://someone:{SECRET}@127.0.0.1:9",
    "PIP_INDEX_URL": f"https://someone:{SECRET}@127.0.0.1:9/simple",
    "AWS_SECRET_ACCESS_KEY": SECRET,
    "HF_TOKEN": SECRET,
    "WANDB_API_KEY": SECRET,
    "NOT_TOLD_BY_ITS_NAME": SECRET,
}


def test_no_file_of_a_run_that_hangs_holds_a_secret_of_its_environment(launcher: Launcher) -> None:
    run = create_run(launcher.runs_dir, num_epochs=100_000, hang_timeout_s=2.0, checkpoint_every_steps=50)
    live = launcher.start_run(run, environment=ENVIRONMENT)
    live.wait_for("checkpoint")
    held = {name for name, value in live.rank(0).environ().items() if SECRET in value}
    assert held == {"NOT_TOLD_BY_ITS_NAME"}, "of the ranks' business is none that can be told"
    live.rank(1).suspend()
    assert live.wait_for_end().state == "failed", live.story()
    assert list(run.logs.glob("hang_*.txt")), "the stacks of the hang are among what is looked through"
    assert live.events("warning")[-1]["code"] == "notify_failed", "it was to be told, and could not"
    # The supervisor's output is next to the run directory; events, logs and checkpoints are inside.
    files = [path for path in launcher.runs_dir.rglob("*") if path.is_file()]
    assert len(files) > 8
    assert [path.name for path in files if SECRET.encode() in path.read_bytes()] == []
