"""Writes the reference vectors of the schedules that are as PyTorch has them.

    python torch_vectors.py
"""

import json
import pathlib

import torch

LENGTH = 20


def factors(make):
    """What a learning rate of 1 is multiplied by at steps 0, 1, …"""
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = make(optimizer)
    found = []
    for _ in range(LENGTH):
        found.append(float(optimizer.param_groups[0]["lr"]))
        optimizer.step()
        if len(found) < LENGTH:
            schedule.step()
    return found


schedules = {
    "step": factors(lambda o: torch.optim.lr_scheduler.StepLR(o, step_size=6, gamma=0.3)),
    "one_cycle": factors(lambda o: torch.optim.lr_scheduler.OneCycleLR(o, max_lr=1.0, total_steps=LENGTH)),
}
path = pathlib.Path(__file__).parent / "schedules_torch.json"
path.write_text(json.dumps(schedules, indent=1) + "\n")
print(path.name)
