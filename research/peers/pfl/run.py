"""pfl: federated averaging with the central Gaussian mechanism, user-level by nature.

A user takes one local step on all its rows with learning rate 1, so that its update is minus its mean gradient: the
same job as the other peers. The accountant supposes Poisson sampling and neighbours that add or remove a user, but
the library's own samplers draw cohorts of a fixed size and it divides by the users drawn. Here the cohort is Poisson
sampled and the divisor is its expected size, so that the guarantee holds; a replacement of a user is two such steps.
"""

import logging
import sys
from pathlib import Path
from time import perf_counter

import numpy as np
import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.hyperparam import NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
from pfl.privacy import CentrallyAppliedPrivacyMechanism, GaussianMechanism, PLDPrivacyAccountant

sys.path.insert(0, str(Path(__file__).parent.parent))
from job import read_job


class Logistic(torch.nn.Module):
    def __init__(self, d):
        super().__init__()
        self.weights = torch.nn.Parameter(torch.zeros(d))

    def loss(self, X, y):
        return torch.nn.functional.binary_cross_entropy_with_logits(X @ self.weights, y)

    def metrics(self, X, y):
        return {"loss": Weighted(self.loss(X, y).item() * len(y), len(y))}


class PoissonSampled(FederatedDataset):
    """Every user comes into a cohort on its own, with chance cohort_size / users."""

    def get_cohort(self, cohort_size):
        chosen = self._random_state.random(job.n_users) < cohort_size / job.n_users
        for user in np.flatnonzero(chosen):
            yield self.make_dataset_fn(user), self._get_seed()


class ExpectedSize(FederatedAveraging):
    """The noisy sum is divided by the public expected size of a cohort."""

    def process_aggregated_statistics(self, central_context, aggregate_metrics, model, statistics):
        statistics.weight = central_context.cohort_size
        return super().process_aggregated_statistics(central_context, aggregate_metrics, model, statistics)


logging.disable(logging.INFO)
job = read_job()
np.random.seed(job.seed)  # noqa: NPY002, pfl draws from it
torch.manual_seed(job.seed)
torch.set_num_threads(1)  # users are small: threads only wait for each other
epsilon, delta = job.add_or_remove
start = perf_counter()
accountant = PLDPrivacyAccountant(
    num_compositions=job.steps,
    sampling_probability=job.users_per_step / job.n_users,
    mechanism="gaussian",
    epsilon=epsilon,
    delta=0.999 * delta,  # its search may end 0.1% above the delta it is given
)
noise_seconds = perf_counter() - start
mechanism = CentrallyAppliedPrivacyMechanism(GaussianMechanism.from_privacy_accountant(accountant, job.clip))
ends = np.searchsorted(job.users, np.arange(job.n_users), side="right")[:-1]
rows = [torch.from_numpy(block) for block in np.split(job.X, ends)]
targets = [torch.from_numpy(block) for block in np.split(job.y, ends)]
users = PoissonSampled(lambda user: Dataset([rows[user], targets[user]], user_id=user), user_sampler=lambda: 0)
note = (
    f"untuned SGD: clip {job.clip:g}, learning rate {job.learning_rate:g}, {job.steps} steps, sample rate "
    f"{job.users_per_step / job.n_users:.4g}, noise multiplier {accountant.cohort_noise_parameter:.4g}, last iterate; "
    "one local step"
)


def train():
    module = Logistic(job.X.shape[1])
    model = PyTorchModel(
        module,
        local_optimizer_create=torch.optim.SGD,
        central_optimizer=torch.optim.SGD(module.parameters(), lr=job.learning_rate),
    )
    ExpectedSize().run(
        algorithm_params=NNAlgorithmParams(
            central_num_iterations=job.steps,
            evaluation_frequency=job.steps,
            train_cohort_size=job.users_per_step,
            val_cohort_size=0,
        ),
        backend=SimulatedBackend(training_data=users, val_data=users, postprocessors=[mechanism]),
        model=model,
        model_train_params=NNTrainHyperParams(local_num_epochs=1, local_learning_rate=1.0, local_batch_size=None),
        send_metrics_to_platform=False,
    )
    return module.weights.detach().numpy(), note


job.run(
    peer="pfl",
    package="pfl",
    guarantee=f"user-level ({job.epsilon:g}, {job.delta:g}), replacement: users Poisson sampled; removal + addition at "
    "(epsilon/2, delta/(1+e^(epsilon/2))); PLD accountant",
    train=train,
    noise_seconds=noise_seconds,
)
