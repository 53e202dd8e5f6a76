"""The work in NVIDIA FLARE's simulator: its FedAvg recipe and client API."""

from __future__ import annotations

import tempfile
from pathlib import Path

import torch
from nvflare.app_opt.pt.recipes.fedavg import FedAvgRecipe
from nvflare.recipe import SimEnv

from benchmarks.peers import work

NAME = "peers"
MODEL = Path("server", "simulate_job", "app_server", "FL_global_model.pt")


def main() -> None:
    """All rounds, then the global model into its file."""
    order = work.order()
    sites = work.sites_of(order.data)
    net = work.Network(str(order.start))
    with tempfile.TemporaryDirectory() as folder:
        checkpoint = Path(folder) / "start.pt"
        torch.save(net.state_dict(), checkpoint)
        recipe = FedAvgRecipe(
            name=NAME,
            min_clients=sites,
            num_rounds=order.rounds,
            model=work.Network(),
            initial_ckpt=str(checkpoint),
            train_script=str(Path(__file__).with_name("flare_client.py")),
            train_args=f"--data {order.data}",
        )
        threads = min(order.workers, sites)
        recipe.execute(SimEnv(num_clients=sites, num_threads=threads, workspace_root=folder))
        net.load_state_dict(torch.load(Path(folder) / NAME / MODEL, weights_only=True)["model"])
    work.save(net, order.out)


if __name__ == "__main__":
    main()
