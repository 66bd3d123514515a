#!/usr/bin/env python3
"""How many rounds a federated run takes until so much of the test set is told right.

    rounds_to_accuracy.py 0.97 tutti train run.json --output folder

Runs the command with an evaluation after each round, ends it when the accuracy is reached, and prints the number of that round,
or "never".
"""
import json
import subprocess
import sys

wanted = float(sys.argv[1])
command = [*sys.argv[2:], "--json", "--set", "train.evaluate_every=1", "--set", 'checkpoints={"every": 100000, "keep_best": false}']
process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
reached = None
for line in process.stdout:
    event = json.loads(line)
    if event["event"] == "evaluation_ended" and event["metrics"]["accuracy"] >= wanted:
        reached = event["step"]
        process.terminate()
        break
process.stdout.read()
status = process.wait(timeout=300)
if reached is None and status != 0:
    sys.exit(f"the run failed with {status}")
print(reached if reached is not None else "never")
