"""A run whose model is trained by a service: the location of the model, and its entries in the files of the collection."""

import json

from generate.tiny_models import save_model
from jobs.made_pairs import pair, pairs_table
from pairwright.cli.commands.run import _where_model
from pairwright.config import Config
from pairwright.flow.stages import View, train_stage
from service.service_process import CONFIG, Service


def test_the_result_and_the_final_metrics_name_the_job_the_model_and_the_dataset(tmp_path):
    folder = tmp_path / "round-1" / "train"
    final_metrics = tmp_path / "round-1" / "final_metrics.json"
    final_metrics.parent.mkdir()
    final_metrics.write_text(json.dumps({"run_id": "a", "job_metadata": None}))
    with Service(tmp_path / "data") as service:
        model = save_model(tmp_path / "base")
        service.add_target(model)
        section = {
            "entity_host": service.url,
            "namespace": "shop",
            "customization_config": CONFIG,
            "poll_interval_seconds": 0.05,
        }
        config = Config.model_validate({"backend": {"name": "nemo-customizer", "nemo_customizer": section}})
        table = pairs_table(tmp_path / "pairs", [pair(task) for task in range(12)])
        inputs = {"pairs": table, "experience": tmp_path / "none", "tokens": tmp_path / "none"}
        result = train_stage(config, model, folder, inputs, View())
        shown = service.get(f"/v1/customization/jobs/{result['job_id']}")
    assert result["model"] is None
    assert result["output_model"] == shown["output_model"]
    assert _where_model(result, tmp_path, 1) == f"The model is {shown['output_model']} at {service.url}"
    final = json.loads(final_metrics.read_text())
    assert final == {
        "run_id": "a",
        "job_metadata": {
            "backend": "nemo-customizer",
            "job_id": shown["id"],
            "output_model": shown["output_model"],
            "dataset_name": "shop/pairwright-dpo",
            "status": "completed",
        },
    }


def test_a_run_that_does_not_wait_says_how_to_come_back(tmp_path):
    words = _where_model({"job": "pw-1", "state": "running", "model": None}, tmp_path, 2)
    assert words == f"Job pw-1 is running; wait for it with: pairwright jobs attach {tmp_path}/round-2/train"
