"""Plain Ray, nothing of Polyray in it: tasks, and a named actor that lives on."""

import json
import sys

import ray

ray.init()


@ray.remote
def square(number: int) -> int:
    return number * number


@ray.remote(num_cpus=0)
class Counter:
    def __init__(self) -> None:
        self.count = 0

    def increment(self) -> int:
        self.count += 1
        return self.count


before = ray.util.list_named_actors(all_namespaces=True)
counter = Counter.options(name=sys.argv[1], namespace="demo", lifetime="detached", get_if_exists=True).remote()
print(
    json.dumps(
        {
            "squares": ray.get([square.remote(number) for number in range(8)]),
            "actors_before": sorted(actor["name"] for actor in before),
            "count": ray.get(counter.increment.remote()),
        }
    )
)
