"""
A mean over users
==================

How long do users use an app on a day, on average? A mean that protects each of them, with all their days. You need
not say how large values can be: noise is in proportion to how far users are apart, found privately.

Run it with ``python examples/private_mean.py``.
"""

import matplotlib.pyplot as plt
import numpy as np

import userdp

# %%
# 5,000 users with up to 59 days each, and one broken phone, or a user who wants to spoil it.
rng = np.random.default_rng(0)
user = np.repeat(np.arange(5_000), rng.integers(1, 60, 5_000))  # the user of each day
habit = rng.gamma(4.0, 10.0, 5_000)  # minutes per day, different for everyone
minutes = rng.gamma(4.0, habit[user] / 4)
minutes[user == 17] = 1e9

# %%
# The mean over users of their means, at epsilon 1.
result = userdp.private_mean(minutes, user, epsilon=1.0, delta=1e-6)
means = np.bincount(user, minutes) / np.bincount(user)
true_mean = np.delete(means, 17).mean()
print(f"private {result.mean[0]:.2f} minutes (noise {result.noise_std:.2f}), true {true_mean:.2f}")
print(result.privacy)

# %%
# Noise is far smaller than the differences between users. What is left between the two lines is not noise: the
# farthest users are left out, which pulls the mean of a skewed quantity towards the bulk.
_, axes = plt.subplots(figsize=(8, 3.6), layout="constrained")
axes.hist(np.delete(means, 17), bins=np.arange(0, 140, 4), color="lightsteelblue")
axes.axvline(true_mean, color="black", linestyle="--", label="mean without the broken phone")
low, high = result.mean[0] + 2 * result.noise_std * np.array([-1, 1])
axes.axvspan(low, high, color="tab:orange", alpha=0.7, label="private mean, two deviations of its noise")
axes.set(xlabel="minutes per day, one user's mean", ylabel="users")
axes.legend()
plt.show()
