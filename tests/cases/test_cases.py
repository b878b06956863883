"""Every case, variant and way as a test; and the runner itself."""

from __future__ import annotations

import filecmp
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from tests.cases.case_files import CaseFile, Unloadable, case_paths, read_case
from tests.cases.children import ROOT, drive_in_child
from tests.cases.drive import FAILED, OK, SKIPPED, drive
from tests.cases.jobs import Job, jobs_of, judgement_of
from tests.cases.runner import main, run

FILES = Path(__file__).resolve().parent / "files"

FULL_SIZE = {"C53": "lanes", "C54": "hosted", "C65": "by hand"}
"""Cases that the quick tests make small; their full size is run one way, with the slow tests."""


def jobs_to_test() -> list[Job]:
    """Return the jobs in their quick size, and the slow ones in full size."""
    found: list[Job] = []
    for path in case_paths(FILES):
        case = read_case(path)
        assert isinstance(case, CaseFile), case
        full = jobs_of(case, full=True)
        found.extend(job for job in jobs_of(case) if not job.is_slow)
        found.extend(
            replace(job, is_slow=True)
            for job in full
            if job.is_slow or FULL_SIZE.get(case.id) == job.way
        )
    return found


def parameters() -> list[object]:
    """Return the jobs as parameters, named as the runner prints them."""
    marks = [pytest.mark.slow, pytest.mark.timeout(600)]
    return [
        pytest.param(
            job,
            id=f"{job.label} full" if job.full else job.label,
            marks=marks if job.is_slow or job.is_slow_way else [],
        )
        for job in jobs_to_test()
    ]


@pytest.mark.parametrize("job", parameters())
def test_case(job: Job) -> None:
    verdict = drive_in_child(job, 600.0 if job.full else 50.0) if job.needs_child else drive(job)
    if verdict.status == SKIPPED:
        pytest.skip(verdict.detail)
    if verdict.status == FAILED:
        raise AssertionError(verdict.detail) from verdict.error


def test_every_case_file_has_a_job_and_most_run() -> None:
    ids = {job.id for job in jobs_to_test()}
    driven = {job.id for job in jobs_to_test() if job.skip is None}
    assert len(ids) == len(case_paths(FILES))
    assert ids == driven


def test_labels_tell_jobs_apart() -> None:
    labels = [(job.label, job.full) for job in jobs_to_test()]
    assert len(labels) == len(set(labels))


def test_the_files_are_those_that_were_given(shared_folder: Path) -> None:
    given = shared_folder / "cases"
    if not given.is_dir():
        pytest.skip(f"no cases at {given}")
    names = sorted(path.name for path in given.glob("*.py") if path.name != "selftest.py")
    assert sorted(path.name for path in FILES.glob("*.py")) == names
    match, differ, missing = filecmp.cmpfiles(given, FILES, names, shallow=False)
    assert (differ, missing) == ([], [])
    assert match == names


# --------------------------------------------------------------------------------- the runner

COMMON = (FILES / "common.py").read_text(encoding="utf-8")

RIGHT = """'''Right: three steps.'''
from common import *
ID, KIND, LINKS = "C91", "a right case", ["none"]
RUN = dict(seeds=[0, 1])
def make_env(lane=0): return Count(3, lane=lane)
def make_predict(): return zero
def check(r): assert [e["steps"] for e in r["episodes"]] == [3, 3]
"""
WRONG = RIGHT.replace("C91", "C92").replace("== [3, 3]", "== [4, 4]")
BY_HAND = """
from common import *
ID, KIND, LINKS = "C93", "a case of the future", ["none"]
RUN = dict(manual=True, variants=["a", "b"])
def make_env(lane=0): return Count(3, lane=lane)
def make_predict(): return zero
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A folder with nothing but the shared helpers."""
    (tmp_path / "common.py").write_text(COMMON, encoding="utf-8")
    return tmp_path


def write(folder: Path, name: str, text: str) -> Path:
    path = folder / name
    path.write_text(text, encoding="utf-8")
    return path


def job_for(path: Path, way: str) -> Job:
    case = read_case(path)
    assert isinstance(case, CaseFile), case
    (job,) = [job for job in jobs_of(case) if job.way == way]
    return job


def test_a_right_case_prints_a_line_per_way_and_ends_with_zero(folder, capsys) -> None:
    write(folder, "c91_right.py", RIGHT)
    assert main([str(folder)]) == 0
    *lines, tally = capsys.readouterr().out.splitlines()
    assert {"C91 blocking: ok", "C91 session: ok", "C91 env over grpc: ok"} < set(lines)
    assert [line.partition(": ")[2] for line in lines] == ["ok"] * len(lines)
    assert tally == f"{len(lines)} ok, 0 failed, 0 skipped"


def test_a_failing_case_ends_with_non_zero_and_says_why(folder, capsys) -> None:
    write(folder, "c91_right.py", RIGHT)
    write(folder, "c92_wrong.py", WRONG)
    assert main([str(folder)]) == 1
    out = capsys.readouterr().out
    assert "C91 blocking: ok" in out
    assert "C92 blocking: FAILED: AssertionError" in out


def test_a_file_that_cannot_be_loaded_fails(folder, capsys) -> None:
    write(folder, "c94_broken.py", "import no_such_module_anywhere\n")
    assert main([str(folder)]) == 1
    assert "c94_broken.py: FAILED: cannot be loaded: ModuleNotFoundError" in capsys.readouterr().out


def test_an_empty_folder_fails(folder, capsys) -> None:
    assert main([str(folder)]) == 1
    assert "no case" in capsys.readouterr().out


def test_a_case_that_nobody_can_drive_is_skipped_with_a_reason(folder, capsys) -> None:
    write(folder, "c93_later.py", BY_HAND)
    assert main([str(folder)]) == 1, "nothing ran"
    assert "C93: skipped: it is to be driven by hand" in capsys.readouterr().out
    write(folder, "c91_right.py", RIGHT)
    assert main([str(folder)]) == 0


def test_a_missing_error_fails(folder) -> None:
    text = RIGHT.replace("seeds=[0, 1]", 'seeds=[0, 1], expect_error=("arm fault",)')
    verdict = drive(job_for(write(folder, "c91_right.py", text), "blocking"))
    assert verdict.status == FAILED
    assert "no error came" in verdict.detail


def test_an_error_without_the_expected_words_fails(folder) -> None:
    text = RIGHT.replace("seeds=[0, 1]", 'seeds=[0, 1], expect_error=("arm fault",)').replace(
        "return zero", "return lambda obs: 1 / 0"
    )
    verdict = drive(job_for(write(folder, "c91_right.py", text), "blocking"))
    assert verdict.status == FAILED
    assert "'arm fault' is not in" in verdict.detail


def test_a_crash_in_a_variant_is_no_refusal(folder) -> None:
    text = RIGHT.replace("seeds=[0, 1]", 'seeds=[0], variants=["zero", "shape"]').replace(
        "def make_predict(): return zero",
        "def make_predict(variant=None):\n"
        "    bad = {'zero': lambda obs: 1 / 0, 'shape': lambda obs: np.zeros(3)}\n"
        "    return bad.get(variant, zero)",
    )
    text = text.replace("== [3, 3]", "== [3]").replace("three steps", "a wrong shape is refused")
    case = read_case(write(folder, "c91_right.py", text))
    assert isinstance(case, CaseFile)
    seen = {job.label: drive(job) for job in jobs_of(case) if job.way == "blocking"}
    assert seen["C91 blocking"].status == OK
    assert seen["C91 zero blocking"].status == FAILED
    assert seen["C91 shape blocking"].text.startswith("ok (refused: InvalidValue: action: ")


def test_a_hang_is_interrupted(folder, monkeypatch) -> None:
    text = RIGHT.replace("return zero", "return lambda obs: time.sleep(25)")
    monkeypatch.setattr("tests.cases.runner.LIMIT_S", 0.3)
    verdict = run(job_for(write(folder, "c91_right.py", text), "blocking"))
    assert verdict.status == FAILED
    assert "did not end within 0.3 s" in verdict.detail


def test_what_could_harm_the_runner_gets_a_process_of_its_own(folder) -> None:
    text = RIGHT.replace("return zero", "return lambda obs: os._exit(3)")
    job = job_for(write(folder, "c91_right.py", text), "hosted")
    assert job.needs_child
    verdict = drive_in_child(job)
    assert verdict.status == FAILED
    assert "ended with code 3" in verdict.detail


def test_a_child_that_hangs_is_ended(folder) -> None:
    text = RIGHT.replace("return zero", "return lambda obs: time.sleep(3600)")
    job = job_for(write(folder, "c91_right.py", text), "blocking")
    assert job.needs_child
    verdict = drive_in_child(job, 2.0)
    assert verdict.status == FAILED
    assert "did not end within 2 s" in verdict.detail


def test_runs_share_neither_module_nor_common(folder) -> None:
    text = RIGHT.replace(
        "def make_predict(): return zero",
        "RUNS = []\n"
        "def make_predict():\n    RUNS.append(1)\n    assert len(RUNS) == 1\n    return zero",
    ).replace("== [3, 3]", "== [3, 3]; assert len(env_resets(r)) == 2")
    before = set(sys.modules)
    path = write(folder, "c91_right.py", text)
    for way in ("blocking", "hosted", "session"):
        assert drive(job_for(path, way)).status == OK
    assert "common" not in sys.modules
    assert not {name for name in set(sys.modules) - before if "rollmesh_case" in name}


def test_limits_of_a_case_are_kept_where_a_hang_can_be_left_behind(folder) -> None:
    text = RIGHT.replace("seeds=[0, 1]", "seeds=[0], timeouts=dict(predict=0.1)").replace(
        'def check(r): assert [e["steps"] for e in r["episodes"]] == [3, 3]',
        'def check_error(exc, r): assert "did not come back within 0.1 s" in str(exc)',
    )
    text = text.replace("return zero", "return lambda obs: time.sleep(20)")
    path = write(folder, "c91_right.py", text)
    assert job_for(path, "blocking").skip is not None
    assert drive(job_for(path, "hosted")).text == "ok"


def test_an_unknown_key_is_told(folder) -> None:
    text = RIGHT.replace("seeds=[0, 1]", "seeds=[0, 1], gravity=9.81")
    verdict = drive(job_for(write(folder, "c91_right.py", text), "blocking"))
    assert verdict.text == "ok (RUN keys not acted upon: gravity)"


def test_an_unloadable_file_is_told_apart(folder) -> None:
    assert isinstance(read_case(write(folder, "c95_x.py", "raise SystemExit")), Unloadable)


def test_a_case_without_an_entry_is_judged_by_its_file() -> None:
    assert judgement_of("C91") is judgement_of("C92")


def test_the_runner_is_a_command(folder) -> None:
    write(folder, "c92_wrong.py", WRONG)
    done = subprocess.run(
        [sys.executable, "-m", "tests.cases.runner", str(folder)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    assert done.returncode == 1, done.stderr
    assert "C92 hosted: FAILED" in done.stdout
