"""The description of a run that the control plane leaves for the program that starts it."""

from __future__ import annotations

import json
from pathlib import Path

from sqlalchemy.orm import Session

from polyray.core.durable import put_file
from polyray.core.layout import Layout
from polyray.core.resources import CPU, is_gpu
from polyray.core.spec import DatasetRef, WorkloadSpec
from polyray.store.tables import DatasetVersion, ModelVersion, Workload


def describe(session: Session, workload: Workload, layout: Layout) -> dict[str, object]:
    """Return what `run.json` says: code, datasets and model by digest and path, command, attempt."""
    spec = WorkloadSpec.model_validate(workload.spec)
    bundle = spec.bundle
    model = None
    if spec.model is not None:
        ref = DatasetRef.parse(spec.model, field="model")
        version = session.get_one(ModelVersion, (workload.tenant, ref.name, ref.version))
        model = {
            "name": ref.name,
            "version": ref.version,
            "digest": version.digest,
            "path": str(layout.model(workload.tenant, ref.name, ref.version)),
        }
    datasets = []
    for ref in spec.dataset_refs:
        row = session.get_one(DatasetVersion, (workload.tenant, ref.name, ref.version))
        path = str(layout.dataset(workload.tenant, ref.name, ref.version))
        datasets.append({"name": ref.name, "version": ref.version, "digest": row.digest, "path": path})
    code = spec.working_dir
    return {
        "workload_id": workload.workload_id,
        "tenant": workload.tenant,
        "project": workload.project,
        "attempt": workload.attempt,
        "kind": workload.kind,
        "name": workload.name,
        "run": spec.run,
        "app": spec.app,
        "code_blob": str(layout.blob(workload.tenant, code)) if code else None,
        "code_sha256": code,
        "datasets": datasets,
        "model": model,
        "env": spec.env,
        "workers": spec.workers,
        "num_cpus_per_worker_milli": bundle[CPU],
        "gpus_per_worker": sum(bundle[flavor] for flavor in bundle if is_gpu(flavor)) // 1000,
    }


def write(run_dir: Path, description: dict[str, object]) -> None:
    """Write `run.json` whole or not at all."""
    for part in ("logs", "code", "datasets", "checkpoints", "artifacts"):
        (run_dir / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    told = json.dumps(description, indent=1, sort_keys=True).encode()
    put_file(run_dir / "run.json", told, effect="file.run")
