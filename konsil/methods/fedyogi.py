"""FedYogi (Reddi et al., ICLR 2021, Algorithm 2): Yogi at the server.

FedAdam with v <- v - (1 - b2) D^2 sign(v - D^2): v changes by D^2 and not by its distance to v,
so that after large steps it forgets slowly. Where v = 0 (or 2 D^2) the two take the same step.
"""

from konsil.ingredients.method import method
from konsil.ingredients.server_optimizer import ServerYogi
from konsil.methods.fedadam import FedAdam, FedAdamSettings


class FedYogiSettings(FedAdamSettings):
    """beta1 = 0 and server_lr = 2 tau, both large, comes to FedAvg (v stays near tau^2)."""


@method("fedyogi", paper="Reddi et al., ICLR 2021, Algorithm 2")
class FedYogi(FedAdam):
    """FedAdam whose second moment grows fast and shrinks slowly."""

    Settings = FedYogiSettings
    optimizer = ServerYogi
