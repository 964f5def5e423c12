"""Opacus: DP-SGD with Poisson sampling. It has no user level; the setting `reading` chooses one of two ways to it.

"users" (default): one example is a user's block of rows with the mean loss, so that a user's gradient is clipped.
The accountant's neighbours add or remove an example; a replacement of a user is two such steps.
"rows": one example is a row. Replacing a user is at most max_rows_per_user removals and as many additions, so that
k = 2 max_rows_per_user steps compose: epsilon / k, and delta (e^(epsilon / k) - 1) / (e^epsilon - 1), a row. Users
are padded with zero rows, which have no gradient, to make the number of rows public.
"""

import sys
import warnings
from math import ceil, expm1
from pathlib import Path
from time import perf_counter

import torch
from opacus import PrivacyEngine
from opacus.accountants.utils import get_noise_multiplier
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

sys.path.insert(0, str(Path(__file__).parent.parent))
from job import read_job

LARGE_ORDERS = [1.1, 1.5, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48] + [int(64 * 2 ** (i / 4)) for i in range(33)]


class Users(TensorDataset):
    """Gives a whole batch at once: the loader would otherwise pick and stack examples one by one."""

    def __getitems__(self, places):
        return [tensor[places] for tensor in self.tensors]


warnings.filterwarnings("ignore")
job = read_job()
torch.manual_seed(job.seed)
rows, targets, weights = (torch.from_numpy(block) for block in job.blocks())
if job.reading == "users":
    (epsilon, delta), accountant, options = job.add_or_remove, "prv", {}
    how = "one example a user's block, Poisson sampled; removal + addition at (epsilon/2, delta/(1+e^(epsilon/2)))"
else:
    rows, targets = rows.reshape(-1, 1, rows.shape[2]), targets.reshape(-1, 1)
    weights = torch.ones_like(targets)
    k = 2 * job.max_rows_per_user
    epsilon, delta = job.epsilon / k, job.delta * expm1(job.epsilon / k) / expm1(job.epsilon)
    accountant, options = "rdp", {"alphas": LARGE_ORDERS}
    how = f"row-level DP-SGD with group privacy of (epsilon, delta) for {k} added or removed rows"

examples = Users(rows, targets, weights)
loader = DataLoader(examples, batch_size=ceil(len(examples) / job.steps_per_pass), collate_fn=list)
start = perf_counter()
noise = get_noise_multiplier(
    target_epsilon=epsilon,
    target_delta=delta,
    sample_rate=1 / len(loader),
    steps=job.passes * len(loader),
    accountant=accountant,
    epsilon_tolerance=epsilon / 100,
    **options,
)
noise_seconds = perf_counter() - start
note = (
    f"untuned SGD: clip {job.clip:g}, learning rate {job.learning_rate:g}, {job.passes * len(loader)} steps, "
    f"sample rate {1 / len(loader):.4g}, noise multiplier {noise:.4g}, last iterate"
)


def train():
    model = torch.nn.Linear(rows.shape[2], 1, bias=False)
    torch.nn.init.zeros_(model.weight)
    model, optimizer, batches = PrivacyEngine(accountant=accountant).make_private(
        module=model,
        optimizer=torch.optim.SGD(model.parameters(), lr=job.learning_rate),
        data_loader=loader,
        noise_multiplier=noise,
        max_grad_norm=job.clip,
    )
    for _ in range(job.passes):
        for X, y, weight in batches:
            optimizer.zero_grad()
            losses = binary_cross_entropy_with_logits(model(X).squeeze(2), y, reduction="none")
            (losses * weight).sum(1).mean().backward()
            optimizer.step()
    return model._module.weight.detach().numpy(), note


job.run(
    peer=f"opacus ({job.reading})",
    package="opacus",
    guarantee=f"user-level ({job.epsilon:g}, {job.delta:g}), replacement: {how}; {accountant.upper()} accountant",
    train=train,
    noise_seconds=noise_seconds,
)
