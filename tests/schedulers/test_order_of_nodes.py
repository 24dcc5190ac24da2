"""Steps whose list of nodes is in another order than their ranks, on a real cluster."""

from __future__ import annotations

from .placed_job import PlacedJob

LAST, FIRST = "--nodelist=host3", "--nodelist=host1,host2"


def test_groups_of_a_job_whose_first_sorts_last_meet_at_the_first(job: PlacedJob) -> None:
    """Slurm sorts the list of the step; node 0 is on the first group's host all the same."""
    shape = f"#SBATCH --nodes=1 {LAST}\n#SBATCH hetjob\n#SBATCH --nodes=2 {FIRST}\n"
    number = job.submit(f"{shape}srun --het-group=0,1 {job.line()}\n")
    job.until_stepping(3)
    job.say("finish")
    job.cluster.until_state(number, "COMPLETED", "FAILED")
    assert "this is node 0, meeting at host3:" in job.output
    job.check()


def test_where_nobody_knows_node_0_it_says_its_name_and_with_that_it_works(job: PlacedJob) -> None:
    """`srun a : b` sorts the list too, and does not tell the groups."""
    groups = ("srun", "--nodes=1", LAST, *job.words(), ":", "--nodes=2", FIRST, *job.words())
    refused = job.start(*groups)
    assert job.status(refused) == 2
    assert "HOLDFAST_RDZV_ENDPOINT=host3:29400 srun" in refused.stderr
    command = job.start("env", "HOLDFAST_RDZV_ENDPOINT=host3:29400", *groups)
    job.until_stepping(3)
    assert job.finish(command) == 0
    assert "3 nodes, this is node 2, meeting at host3:29400 (HOLDFAST_RDZV_ENDPOINT)" in (
        command.stderr
    )
    job.check()
