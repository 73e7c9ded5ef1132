"""Cgroups: from id to path to job."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from collectors.ebpf.cgroup import PATTERNS, Cgroups, NoCgroups, job, mount

_POD = "3f0d2a6e-8c1b-4a52-9d3e-1f2a3b4c5d6e"


@pytest.mark.parametrize(
    ("path", "name"),
    [
        ("/system.slice/slurmstepd.scope/job_1234/step_0/user/task_0", "job_1234"),
        ("/slurm/uid_1000/job_77", "job_77"),
        (
            f"/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{_POD.replace('-', '_')}"
            ".slice/cri-containerd-0123.scope",
            f"pod{_POD}",
        ),
        (f"/kubepods.slice/kubepods-pod{_POD.replace('-', '_')}.slice", f"pod{_POD}"),
        (f"/kubepods/besteffort/pod{_POD}/0123", f"pod{_POD}"),
        (f"/kubepods/pod{_POD}/0123", f"pod{_POD}"),
        ("/system.slice/ssh.service", ""),
        ("/user.slice/user-0.slice/my-job_12x/shell", ""),
        ("/", ""),
        ("", ""),
    ],
)
def test_jobs_of_well_known_schedulers(path: str, name: str) -> None:
    assert job(path, [re.compile(pattern) for pattern in PATTERNS]) == name


def test_a_pattern_of_ones_own() -> None:
    assert job("/jobs/llm-70b/rank0", [re.compile("^/jobs/([^/]+)")]) == "llm-70b"
    assert job("/jobs/llm-70b", [re.compile("llm-.*")]) == "llm-70b"


def test_the_mount_is_found_by_its_kind(tmp_path: Path) -> None:
    mounts = tmp_path / "mounts"
    mounts.write_text(
        "cgroup /sys/fs/cgroup/cpu cgroup rw 0 0\ncgroup2 /mnt/with\\040blank cgroup2 rw 0 0\n"
    )
    assert mount(mounts) == Path("/mnt/with blank")
    mounts.write_text("tmpfs /tmp tmpfs rw 0 0\n")
    with pytest.raises(NoCgroups, match="cgroup2"):
        mount(mounts)


def test_a_real_cgroup_is_found_by_its_id_and_lost_when_gone() -> None:
    try:
        root = mount()
        folder = root / f"evertick-test-{os.getpid()}" / "job_42"
        folder.mkdir(parents=True)
    except (NoCgroups, OSError) as error:
        pytest.skip(f"no cgroup can be made here: {error}")
    cgroups = Cgroups(root, PATTERNS)
    try:
        path = "/" + str(folder.relative_to(root))
        if os.geteuid() != 0:
            pytest.skip("finding a cgroup by its id needs CAP_DAC_READ_SEARCH")
        assert cgroups.find(folder.stat().st_ino) == (path, "job_42")
        assert cgroups.find(root.stat().st_ino) == ("/", "")
        assert cgroups.find(0) == ("", "")
        known = folder.stat().st_ino
    finally:
        folder.rmdir()
        folder.parent.rmdir()
        cgroups.close()
    afresh = Cgroups(root, PATTERNS)
    assert afresh.find(known) == ("", "")
    afresh.close()
