"""The arms of examples/tic_tac_toe/signals.py: each is a configuration that loads, with as many sequences an update."""

import json
import subprocess
import sys
from pathlib import Path

EXAMPLE = Path(__file__).parents[2] / "examples" / "tic_tac_toe"
CODE = """
import json
from pathlib import Path
from signals import ARMS, make_config
configs = {name: make_config(Path("runs"), 3, train).train for name, (_, train) in ARMS.items()}
print(json.dumps({name: [one.channels.model_dump(), one.batch_size, one.max_steps] for name, one in configs.items()}))
"""


def test_every_arm_has_its_channel_and_the_same_number_of_sequences():
    done = subprocess.run([sys.executable, "-c", CODE], cwd=EXAMPLE, capture_output=True, text=True, check=True)
    arms = json.loads(done.stdout)
    for name, (channels, batch_size, max_steps) in arms.items():
        assert [channel for channel, weight in channels.items() if weight] == [name]
        assert batch_size * (2 if name == "dpo" else 1) == 128
        assert max_steps == 400
