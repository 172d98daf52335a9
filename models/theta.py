"""theta: a softmax over the calls that a state offers, a frozen base with a low-rank update (LoRA, arXiv 2106.09685), in numpy.

    logit(call | state) = f(state)^T (W0 + alpha/r A B) g(call)

f and g are hashed words, of length 1. W0 is random and frozen: the untrained model. A begins random and B at zero, so theta_0
is the base exactly. Trained by Adam with 3 % warm-up and a cosine, as the paper's LoRA is, with a softmax's exact gradient:
soft SFT (a weight a row) or offline GRPO (candidates with rewards, a KL term to the theta that made them).
"""
import io
import zipfile
import zlib
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import numpy as np

from models import ModelError

STATE, CALL, RANK, ALPHA, SHARP = 1024, 256, 8, 16.0, 3.0     # sizes of f and g, r, alpha, spread of the base's weights
CLIP, KL = 0.2, 0.04                                          # GRPO: ratio clip, weight of the KL term


def features(words: set[str], size: int) -> np.ndarray:
    """(size,) float32 of length 1. subtle: crc32, since hash() differs from process to process."""
    f = np.zeros(size, np.float32)
    f[[zlib.crc32(w.encode()) % size for w in words | {"bias"}]] = 1
    return f / np.linalg.norm(f)


@dataclass
class Row:
    """One state, and what is to be learned about it."""

    f: np.ndarray                    # (STATE,)
    g: np.ndarray                    # (offers, CALL)
    gold: list[int]                  # SFT: the one right call; GRPO: the candidates
    weight: list[float]              # SFT: its weight; GRPO: the candidates' advantages
    old: np.ndarray | None = None    # GRPO: the probabilities under the theta that made the candidates


def row(state: set[str], calls: list[set[str]], gold: Iterable[int] = (), weight: Iterable[float] = ()) -> Row:
    return Row(features(state, STATE), np.array([features(c, CALL) for c in calls]), list(gold), list(weight))


def sft(p: np.ndarray, row: Row) -> tuple[float, np.ndarray]:
    """(loss, its gradient by the logits) of -w log p(gold)."""
    gold, weight = row.gold[0], row.weight[0]
    return -weight * float(np.log(p[gold] + 1e-9)), weight * (p - np.eye(len(p))[gold])


def grpo(p: np.ndarray, row: Row) -> tuple[float, np.ndarray]:
    """(loss, its gradient) of -mean_i min(ratio_i a_i, clip(ratio_i) a_i) + KL(p, old); exact, since every offer's p is known."""
    gap, a = np.log((p + 1e-9) / (row.old + 1e-9)), np.array(row.weight)
    ratio, kl = (p / row.old)[row.gold], float(p @ gap)
    free = np.where(a > 0, ratio < 1 + CLIP, ratio > 1 - CLIP)
    push = ratio * a * free / len(a)
    d = KL * p * (gap - kl) + push.sum() * p
    np.subtract.at(d, row.gold, push)
    return KL * kl - float(np.minimum(ratio * a, ratio.clip(1 - CLIP, 1 + CLIP) * a).mean()), d


class Theta:
    def __init__(self, seed: int = 0):
        normal = lambda seed, *shape: np.random.default_rng(seed).standard_normal(shape).astype(np.float32)
        self.W0 = SHARP * normal(0, STATE, CALL)             # one base, whatever the run's seed
        self.A, self.B = normal(seed, STATE, RANK) / RANK ** 0.5, np.zeros((RANK, CALL), np.float32)

    def probs(self, row: Row) -> np.ndarray:
        """(offers,) float64."""
        z = (row.g @ (row.f @ self.W0 + ALPHA / RANK * (row.f @ self.A) @ self.B)).astype(np.float64)
        z = np.exp(z - z.max())
        return z / z.sum()

    def fit(self, rows: list[Row], loss: Callable = sft, *, steps: int, lr: float = 0.02, batch: int = 16,
            seed: int = 0) -> list[float]:
        """Train A and B in place; returns each step's mean loss."""
        rng, params, history = np.random.default_rng(seed), (self.A, self.B), []
        moments = [(np.zeros_like(x), np.zeros_like(x)) for x in params]
        order = [i for _ in range(-(-steps * batch // max(1, len(rows)))) for i in rng.permutation(len(rows))]
        for t in range(1, steps + 1 if rows else 1):
            part, mean, grads = [rows[i] for i in order[(t - 1) * batch:t * batch]], 0.0, [np.zeros_like(x) for x in params]
            for r in part:
                value, d = loss(self.probs(r), r)
                mean += value / len(part)
                du = ALPHA / RANK / len(part) * (d.astype(np.float32) @ r.g)
                grads[0] += np.outer(r.f, self.B @ du)
                grads[1] += np.outer(r.f @ self.A, du)
            rate = lr * min(1.0, t / max(1.0, 0.03 * steps)) * 0.5 * (1 + np.cos(np.pi * (t - 1) / steps))
            for x, g, (m, v) in zip(params, grads, moments):
                m += 0.1 * (g - m)
                v += 0.001 * (g * g - v)
                x -= rate * (m / (1 - 0.9 ** t)) / (np.sqrt(v / (1 - 0.999 ** t)) + 1e-8)
            history.append(mean)
        return history

    def dumps(self) -> bytes:
        """The adapter as an npz, with a fingerprint of its base; the same theta gives the same bytes."""
        out = io.BytesIO()
        np.savez(out, A=self.A, B=self.B, base=np.array(zlib.crc32(self.W0.tobytes())))
        return out.getvalue()

    @staticmethod
    def load(path: str) -> "Theta":
        """The theta of an adapter file; "": theta_0. Raises ModelError: no such file, no adapter, or one of another base."""
        theta = Theta()
        if not path:
            return theta
        try:
            with np.load(path, allow_pickle=False) as saved:
                A, B, base = saved["A"], saved["B"], int(saved["base"])
            if (base, A.shape, B.shape) != (zlib.crc32(theta.W0.tobytes()), theta.A.shape, theta.B.shape):
                raise ValueError("it was trained on another base")
            if not (np.isfinite(A).all() and np.isfinite(B).all()):
                raise ValueError("it holds numbers that are not finite")
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as e:
            raise ModelError(f"--model student:{path} can't be read: {e}; train it again with sft.py") from None
        theta.A, theta.B = A, B
        return theta
