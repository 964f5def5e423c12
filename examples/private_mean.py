"""How long do people use an app on a day, on average? A mean over people that protects each of them.

    python examples/private_mean.py

Nobody has to say how large values can be: noise is in proportion to how far people are apart, found privately.
"""

import numpy as np

import userdp


def main() -> None:
    rng = np.random.default_rng(0)
    person = np.repeat(np.arange(5_000), rng.integers(1, 60, 5_000))  # who owns which day
    habit = rng.gamma(4.0, 10.0, 5_000)  # minutes per day, different for everyone
    minutes = rng.gamma(4.0, habit[person] / 4)
    minutes[person == 17] = 1e9  # a broken phone, or somebody who wants to spoil it

    result = userdp.private_mean(minutes, person, epsilon=1.0, delta=1e-6)

    true_mean = np.mean([minutes[person == p].mean() for p in range(5_000) if p != 17])
    print(f"private {result.mean[0]:.2f} minutes (noise {result.noise_std:.2f}), true {true_mean:.2f}")
    print(result.privacy)


if __name__ == "__main__":
    main()
