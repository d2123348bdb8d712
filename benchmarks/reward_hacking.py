"""Reward hacking in miniature: does the gradient penalty keep a policy from gaming its reward, and what does it cost?

    python benchmarks/reward_hacking.py [--tasks proxy,learned,sparse] [--seeds 5] [--arms none,kl-0.03,score-0.3]
                                        [--folder runs/hacking] [--jobs 2]

Tiny transformers, pretrained in a minute and shared by all arms, are trained on a proxy reward through the library's
own path, while the true score of the same samples is only watched. The tasks are in hacking/tasks.py, the arms in
hacking/arms.py. Leaves table.md, three CSV files and a plot for each task in the folder. Runs that are finished there
are not run again, so a broken-off benchmark goes on where it was, and more seeds or arms only add theirs.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

from hacking.arms import arms, laid_over
from hacking.report import report
from hacking.runs import clip_limit, finished, train
from hacking.tasks import TASKS, Task, make_start, missing
from rich.console import Console

from grpo_core.config.load import config_from_mapping

ROOT = Path(__file__).resolve().parents[1]
CONSOLE = Console(width=140)
Call = tuple[str, Callable[..., None], tuple[Any, ...]]


def mapping(task: Task, arm: str, seed: int, folder: Path, clip: float | None = None) -> dict[str, Any]:
    """The config of one run."""
    config = laid_over(task.config(folder / "starts" / task.start), arms(task.learning_rate, clip)[arm])
    return laid_over(config, {"run": {"seed": seed, "folder": str(run_folder(folder, task, arm, seed))}})


def run_folder(folder: Path, task: Task, arm: str, seed: int) -> Path:
    """Where one run lives."""
    return folder / task.name / f"{arm}-seed{seed}"


def in_workers(calls: Iterable[Call], jobs: int) -> None:
    """Make the calls in worker processes of one thread each, and say when each is done. The first failure ends it."""
    waiting = list(calls)
    if not waiting:
        return
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(jobs, mp_context=multiprocessing.get_context("spawn")) as pool:
        began = time.perf_counter()
        names = {pool.submit(call, *given): name for name, call, given in waiting}
        try:
            for done, future in enumerate(as_completed(names), 1):
                future.result()
                minutes = (time.perf_counter() - began) / 60
                CONSOLE.print(f"{done}/{len(names)} after {minutes:.1f} min: {names[future]}", highlight=False)
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def train_all(tasks: Sequence[Task], wanted: Sequence[str], seeds: int, folder: Path, jobs: int) -> None:
    """Starts, then the runs that the clip's limit is measured on, then everything else."""
    starts = {task.start: folder / "starts" / task.start for task in tasks}
    in_workers([(f"start {n}", make_start, (n, path)) for n, path in starts.items() if not path.is_dir()], jobs)
    if "clip" in wanted:
        in_workers(_due([mapping(task, "none", 0, folder) for task in tasks]), jobs)
    clips = {t.name: clip_limit(run_folder(folder, t, "none", 0)) if "clip" in wanted else None for t in tasks}
    every = [(task, arm, seed) for seed in range(seeds) for task in tasks for arm in wanted]
    in_workers(_due([mapping(task, arm, seed, folder, clips[task.name]) for task, arm, seed in every]), jobs)


def _due(mappings: Sequence[dict[str, Any]]) -> list[Call]:
    """The runs that are not finished."""
    due = [given for given in mappings if not finished(config_from_mapping(given))]
    return [("/".join(Path(given["run"]["folder"]).parts[-2:]), train, (given,)) for given in due]


def main() -> None:
    """Train what is not there yet, then report."""
    every = list(arms(1e-3, None))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tasks", default=",".join(TASKS))
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--arms", default=",".join(every), help="default: all of %(default)s")
    parser.add_argument("--folder", type=Path, default=ROOT / "runs" / "hacking")
    parser.add_argument("--jobs", type=int, default=2, help="worker processes")
    arguments = parser.parse_args()
    names, wanted = arguments.tasks.split(","), arguments.arms.split(",")
    for kind, given, known in (("task", names, TASKS), ("arm", wanted, every)):
        if unknown := set(given) - set(known):
            parser.error(f"unknown {kind}: {', '.join(sorted(unknown))}; there are {', '.join(known)}")
    tasks = [TASKS[name] for name in names]
    for reason in filter(None, map(missing, tasks)):
        CONSOLE.print(reason, soft_wrap=True)
    tasks, folder = [task for task in tasks if not missing(task)], arguments.folder.resolve()
    if not tasks:
        return
    for task in tasks:  # a wrong setting is refused before anything runs
        for arm in wanted:
            config_from_mapping(mapping(task, arm, 0, folder))
    train_all(tasks, wanted, arguments.seeds, folder, arguments.jobs)
    runs = {
        task.name: {arm: [run_folder(folder, task, arm, seed) for seed in range(arguments.seeds)] for arm in wanted}
        for task in tasks
    }
    report(runs, tasks, folder, CONSOLE)


if __name__ == "__main__":
    main()
