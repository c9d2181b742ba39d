import subprocess
import sys

DIE = "from shim.base.parent_death import die_with_parent; die_with_parent({}); print('lives')"


def test_a_process_whose_parent_has_ended_already_exits() -> None:
    done = subprocess.run([sys.executable, "-c", DIE.format(1 << 22)], capture_output=True, text=True, check=False)

    assert (done.returncode, done.stdout) == (1, "")
    assert done.stderr == "process 4194304, which started this one, has ended\n"


def test_a_process_whose_parent_lives_goes_on() -> None:
    code = f"import os; {DIE.format('os.getppid()')}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout == "lives\n"
