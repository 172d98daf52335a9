"""theta: a softmax over the calls that a state offers, a frozen base with a low-rank update (LoRA, arXiv 2106.09685), in numpy.

    logit(call | state) = f(state)^T (W0 + alpha/r A B) g(call)

f and g are hashed words, of length 1. W0 is random and frozen: the untrained model. A begins random and B at zero, so theta_0
is the base exactly. Trained by Adam with 3 % warm-up and a cosine, as the paper's LoRA is, with a softmax's exact gradient:
soft SFT (a weight a row) or offline GRPO (candidates with rewards, a KL term to the theta that made them).
"""
import io
import zipfile
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from models import ModelError

STATE, CALL, RANK, ALPHA, SHARP = 1024, 256, 8, 16.0, 3.0     # sizes of f and g, r, alpha, spread of the base's weights
CLIP, KL = 0.2, 0.04                                          # GRPO: ratio clip, weight of the KL term


def hashed(words: set[str], size: int) -> np.ndarray:
    """Feature numbers of the words. subtle: crc32, since hash() differs from process to process."""
    return np.unique([zlib.crc32(w.encode()) % size for w in words | {"bias"}])


@dataclass
class Row:
    """One state: f's features, g's of each call offered, and what is to be learned about it."""

    state: np.ndarray                # (n,) feature numbers
    calls: np.ndarray                # (offers, CALL) float32
    gold: list[int]                  # SFT: the one right call; GRPO: the candidates
    weight: list[float]              # SFT: its weight; GRPO: the candidates' advantages
    old: np.ndarray | None = None    # GRPO: the probabilities under the theta that made the candidates


def row(state: set[str], calls: list[set[str]], gold: list[int] = (), weight: list[float] = ()) -> Row:
    G = np.zeros((len(calls), CALL), np.float32)
    for i, words in enumerate(calls):
        ids = hashed(words, CALL)
        G[i, ids] = len(ids) ** -0.5
    return Row(hashed(state, STATE), G, list(gold), list(weight))


def sft(p: np.ndarray, row: Row) -> tuple[float, np.ndarray]:
    """(loss, its gradient by the logits) of -w log p(gold)."""
    d = p * row.weight[0]
    d[row.gold[0]] -= row.weight[0]
    return -row.weight[0] * float(np.log(p[row.gold[0]] + 1e-9)), d


def grpo(p: np.ndarray, row: Row) -> tuple[float, np.ndarray]:
    """(loss, its gradient) of -mean_i min(ratio_i a_i, clip(ratio_i) a_i) + KL(p, old); exact, since every offer's p is known."""
    gap = np.log((p + 1e-9) / (row.old + 1e-9))
    kl = float(p @ gap)
    loss, d = KL * kl, KL * p * (gap - kl)
    for i, a in zip(row.gold, row.weight):
        ratio = p[i] / row.old[i]
        loss -= min(ratio * a, float(np.clip(ratio, 1 - CLIP, 1 + CLIP)) * a) / len(row.gold)
        if (ratio < 1 + CLIP) if a > 0 else (ratio > 1 - CLIP):
            step = -ratio * a / len(row.gold)
            d -= step * p
            d[i] += step
    return loss, d


class Theta:
    def __init__(self, seed: int = 0):
        rng = np.random.default_rng(0)                       # one base, whatever the run's seed
        self.W0 = (SHARP * rng.standard_normal((STATE, CALL))).astype(np.float32)
        self.A = (np.random.default_rng(seed).standard_normal((STATE, RANK)) / RANK ** 0.5).astype(np.float32)
        self.B = np.zeros((RANK, CALL), np.float32)

    def probs(self, row: Row) -> np.ndarray:
        k = len(row.state) ** -0.5
        z = row.calls @ (k * (self.W0[row.state].sum(0) + ALPHA / RANK * self.A[row.state].sum(0) @ self.B))
        z = np.exp((z - z.max()).astype(np.float64))
        return z / z.sum()

    def fit(self, rows: list[Row], loss: Callable = sft, *, lr: float = 0.02, epochs: int = 3, batch: int = 16, steps: int = 0,
            seed: int = 0) -> list[float]:
        """Train A and B in place; returns each step's mean loss. steps: so many, 0: whole passes."""
        rng, total = np.random.default_rng(seed), steps or epochs * -(-len(rows) // batch)
        order = np.concatenate([rng.permutation(len(rows)) for _ in range(-(-total * batch // len(rows)))]) if rows else []
        params, history = [self.A, self.B], []
        m, v = [[np.zeros_like(x) for x in params] for _ in "mv"]
        for t in range(1, (total if rows else 0) + 1):
            part, grads, mean = order[(t - 1) * batch:t * batch], [np.zeros_like(x) for x in params], 0.0
            for r in (rows[i] for i in part):
                value, d = loss(self.probs(r), r)
                mean += value / len(part)
                h, k = self.A[r.state].sum(0), ALPHA / RANK * len(r.state) ** -0.5 / len(part)
                du = (r.calls.T @ d).astype(np.float32)
                grads[1] += k * np.outer(h, du)
                grads[0][r.state] += k * (self.B @ du)
            rate = lr * min(1.0, t / max(1.0, 0.03 * total)) * 0.5 * (1 + np.cos(np.pi * (t - 1) / total))
            for i, (x, g) in enumerate(zip(params, grads)):
                m[i], v[i] = 0.9 * m[i] + 0.1 * g, 0.999 * v[i] + 0.001 * g * g
                x -= rate * (m[i] / (1 - 0.9 ** t)) / (np.sqrt(v[i] / (1 - 0.999 ** t)) + 1e-8)
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
            with np.load(Path(path), allow_pickle=False) as saved:
                A, B, base = saved["A"], saved["B"], int(saved["base"])
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error) as e:
            raise ModelError(f"--model student:{path} can't be read: {e}") from None
        if base != zlib.crc32(theta.W0.tobytes()) or A.shape != theta.A.shape or B.shape != theta.B.shape:
            raise ModelError(f"--model student:{path} was trained on another base; train it again with sft.py")
        if not (np.isfinite(A).all() and np.isfinite(B).all()):
            raise ModelError(f"--model student:{path} holds numbers that are not finite; train it again with sft.py")
        theta.A, theta.B = A, B
        return theta
