import torch

from dpray.models.batches import in_batches


def test_batches_side_by_side_give_what_one_batch_gives_in_order():
    weight = torch.randn(5, 3)
    inputs = torch.randn(103, 5)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        ours = in_batches(lambda part: part @ weight, inputs, 10, torch.device("cpu"))
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert torch.allclose(ours, inputs @ weight, atol=1e-6)
    assert not ours.requires_grad
