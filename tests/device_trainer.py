"""`python -m device_trainer`: the reference trainer on a device that is none; with DEVICE set, without it."""

import os

import stand_in_device
import torch.distributed as dist
from stand_in_device import Watch
from trimtab_trainer.__main__ import main

if __name__ == "__main__":
    if os.environ.get("DEVICE") is not None:
        main()
    stand_in_device.install()
    dist.Backend.default_device_backend_map[stand_in_device.NAME] = "gloo"
    with Watch():
        main()
