"""Train a classifier of handwritten digits on the workers of this job: data-parallel, resumable.

Read it from the bottom up: `main` sets Ray Train up, `train` runs on every worker.
"""

import os
import tempfile
import time
from pathlib import Path

import ray.train
from ray.train.torch import TorchTrainer

import polyray.data
import polyray.train

EPOCHS = int(os.environ.get("EPOCHS", "30"))
#: A pause in each step stands for the work of a larger model, so that there is time to look (and to kill a worker).
STEP_SECONDS = float(os.environ.get("STEP_SECONDS", "0"))
BATCH_SIZE = 32


def train() -> None:
    import torch
    from model import make_model
    from torch.nn import functional
    from torch.nn.parallel import DistributedDataParallel

    torch.manual_seed(0)
    torch.set_num_threads(1)
    rank = ray.train.get_context().get_world_rank()
    model = make_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    batches = polyray.train.shard("digits@1", BATCH_SIZE, shuffle=True)

    if (checkpoint := ray.train.get_checkpoint()) is not None:
        with checkpoint.as_directory() as directory:
            state = torch.load(Path(directory) / "state.pt", weights_only=True)
        model.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        batches.load_state_dict(state["batches"])
        print(f"resumed from epoch {batches.epoch}", flush=True)

    parallel = DistributedDataParallel(model)
    while batches.epoch < EPOCHS:
        losses = []
        for batch in batches:
            loss = functional.cross_entropy(parallel(batch["pixels"]), batch["digit"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
            time.sleep(STEP_SECONDS)

        epoch = batches.epoch  # finished epochs
        metrics = {"epoch": epoch, "loss": sum(losses) / len(losses), "accuracy": accuracy(model)}
        polyray.train.record(**metrics)
        with tempfile.TemporaryDirectory() as directory:
            saved = None
            if rank == 0:
                print("epoch {epoch}: loss {loss:.3f}, held-out accuracy {accuracy:.3f}".format(**metrics), flush=True)
                state = {
                    "model": model.state_dict(),
                    "optimizer": optimizer.state_dict(),
                    "batches": batches.state_dict(),
                }
                torch.save(state, Path(directory) / "state.pt")
                saved = ray.train.Checkpoint.from_directory(directory)
            ray.train.report(metrics, checkpoint=saved)

    if rank == 0:
        with tempfile.TemporaryDirectory() as directory:
            torch.save(model.state_dict(), Path(directory) / "model.pt")
            print(f"model saved in {polyray.train.save_model(directory)}", flush=True)


def accuracy(model) -> float:
    """Return the share of held-out digits that the model reads right."""
    import torch

    right = seen = 0
    with torch.no_grad():
        for batch in polyray.data.stream("digits-held-out@1", 256):
            right += int((model(batch["pixels"]).argmax(1) == batch["digit"]).sum())
            seen += len(batch["digit"])
    return right / seen


def main() -> None:
    trainer = TorchTrainer(
        train, scaling_config=polyray.train.scaling_config(), run_config=polyray.train.run_config(max_failures=3)
    )
    result = trainer.fit()
    print(f"held-out accuracy {result.metrics['accuracy']:.4f} after {result.metrics['epoch']} epochs", flush=True)


if __name__ == "__main__":
    main()
