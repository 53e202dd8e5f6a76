import pytest
import torch

from konsil.config import ComputeConfig
from konsil.errors import ConfigError
from konsil.federation.compute import check_device, prepare_process


def test_the_cpu_is_always_there():
    check_device("cpu")


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a GPU")
@pytest.mark.parametrize("device", ["cuda", "cuda:1"])
def test_a_device_that_is_not_there_is_refused_before_round_1(device: str):
    with pytest.raises(ConfigError, match=r"compute\.device = .*use device: cpu"):
        prepare_process(ComputeConfig(device=device))


def test_a_process_takes_the_threads_of_the_plan():
    usual = torch.get_num_threads()
    try:
        prepare_process(ComputeConfig(threads=2))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(usual)
