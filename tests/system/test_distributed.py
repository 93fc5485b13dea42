import pytest

from ms_eagle.errors import UserError
from ms_eagle.system.distributed import Worker, is_scheduler, worker


def test_what_msrun_says():
    assert worker({}) == Worker(0, 1)
    told = {"MS_ROLE": "MS_WORKER", "RANK_ID": "1", "MS_WORKER_NUM": "2"}
    assert worker(told) == Worker(1, 2)
    assert (worker(told).leads, worker({**told, "RANK_ID": "0"}).leads) == (False, True)
    assert (is_scheduler(told), is_scheduler({"MS_ROLE": "MS_SCHED"})) == (False, True)
    for wrong in ({"MS_ROLE": "MS_WORKER"}, {**told, "RANK_ID": "2"}, {**told, "RANK_ID": "-1"}):
        with pytest.raises(UserError, match="msrun"):
            worker(wrong)
