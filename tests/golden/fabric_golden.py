"""Loads and plans of whole steps on switched fabrics, by networkx alone: shortest ways split evenly, and the shortest
path through a layered graph. Writes fabric_golden.txt beside this file.

    python3 fabric_golden.py     # networkx 2.8 or later
"""
import os
import random

import networkx as nx

random.seed(2025)
HERE = os.path.dirname(os.path.abspath(__file__))


def ring(op, p, size):
    rounds = (p - 1) * (2 if op == "all_reduce" else 1)
    return [[(r, (r + 1) % p, size / p) for r in range(p)] for _ in range(rounds)]


def halving(op, p, size):
    if op != "all_reduce":
        return None
    steps, rounds = p.bit_length() - 1, []
    for s in range(steps):
        rounds.append([(r, r ^ (p >> (s + 1)), size / 2 ** (s + 1)) for r in range(p)])
    return rounds + rounds[::-1]


def groups(tp, dp, axis):  # rank = t * dp + d
    if axis == 0:
        return [[t * dp + d for t in range(tp)] for d in range(dp)]
    return [[t * dp + d for d in range(dp)] for t in range(tp)]


def beside(rounds, members):
    return [[(g[a], g[b], n) for g in members for a, b, n in r] for r in rounds]


class Fabric:
    def __init__(self, links):  # (from, to, seconds, bandwidth)
        self.graph = nx.DiGraph()
        for a, b, seconds, width in links:
            self.graph.add_edge(a, b, seconds=seconds, width=width)
        self.key = tuple(sorted(links))
        self.known = {}

    def ways(self, a, b):
        if (a, b) not in self.known:
            try:
                self.known[a, b] = list(nx.all_shortest_paths(self.graph, a, b))
            except (nx.NetworkXNoPath, nx.NodeNotFound):
                self.known[a, b] = None
        return self.known[a, b]

    def loads(self, messages):
        load, latency = {}, 0.0
        for a, b, size in messages:
            ways = self.ways(a, b)
            if ways is None:
                return None, None
            for way in ways:
                steps = list(zip(way, way[1:]))
                latency = max(latency, sum(self.graph.edges[e]["seconds"] for e in steps))
                for e in steps:
                    load[e] = load.get(e, 0.0) + size / len(ways)
        return load, latency

    def seconds(self, messages):
        load, latency = self.loads(messages)
        if load is None:
            return None
        return latency + max(n / self.graph.edges[e]["width"] for e, n in load.items())


def plan(kinds, calls, states, switching, hide):
    cost = [[[[s.seconds(r) for s in states] for r in way] for way in ways] for ways in kinds]
    g = nx.DiGraph()
    for c, (kind, compute) in enumerate(calls):
        for s in range(len(states)):
            for w, way in enumerate(cost[kind]):
                for k, row in enumerate(way):
                    delay = max(0.0, switching - compute) if hide and k == 0 else switching
                    for t in range(len(states)):
                        if row[t] is None:
                            continue
                        before = ("call", c, s) if k == 0 else ("in", c, w, k - 1, s)
                        after = ("call", c + 1, t) if k == len(way) - 1 else ("in", c, w, k, t)
                        weight = row[t] + (0.0 if s == t else delay) + (compute if k == 0 else 0.0)
                        if not g.has_edge(before, after) or g.edges[before, after]["weight"] > weight:
                            g.add_edge(before, after, weight=weight)
    far = nx.single_source_dijkstra_path_length(g, ("call", 0, 0))
    best = min(far[n] for n in far if n[0] == "call" and n[1] == len(calls))
    fixed = 0.0
    for kind, compute in calls:
        sums = [sum(row[0] for row in way) for way in cost[kind] if all(row[0] is not None for row in way)]
        fixed = fixed + compute + min(sums) if sums else float("inf")
    return best, fixed


def both(pairs):
    return pairs + [(b, a) for a, b in pairs]


def main():
    out = open(os.path.join(HERE, "fabric_golden.txt"), "w")

    def case(tp, dp, pairs, ports, latency, calls, switching):
        n, width = tp * dp, 100e9
        links = sorted(set(pairs))
        links = [(a, b, latency(), width / ports) for a, b in links]
        start = Fabric(links)
        out.write(f"case {tp} {dp} {ports} {switching!r} {len(links)} {len(calls)}\n")
        for a, b, s, w in links:
            out.write(f"{a} {b} {s!r} {w!r}\n")
        names, kinds, steps = [], [], []
        for op, axis, size, compute in calls:
            p = tp if axis == 0 else dp
            if (op, axis, size) not in names:
                names.append((op, axis, size))
                tables = [halving(op, p, size), ring(op, p, size)]
                kinds.append([beside(t, groups(tp, dp, axis)) for t in tables if t])
            steps.append((names.index((op, axis, size)), compute))
            out.write(f"{op} {axis} {size} {compute!r}\n")
        states = [start]
        for ways in kinds:
            for way in ways:
                for r in way:
                    circuits = sorted({(a, b, 3e-6, width) for a, b, _ in r})
                    if tuple(circuits) not in [s.key for s in states]:
                        states.append(Fabric(circuits))
        together, fixed = plan(kinds, steps, states, switching, False)
        hidden, _ = plan(kinds, steps, states, switching, True)
        out.write(f"{fixed!r} {together!r} {hidden!r} {len(states)}\n")
        # Bytes on the links of the first topology, all rounds of the first way of the first call together.
        sums = [0.0] * len(links)
        at = {(a, b): i for i, (a, b, _, _) in enumerate(links)}
        for r in kinds[0][0]:
            load, _ = start.loads(r)
            for e, v in (load or {}).items():
                sums[at[e]] += v
        out.write(" ".join(repr(v) for v in sums) + "\n")

    def some_calls(count):
        ops = ["all_reduce", "all_gather", "reduce_scatter"]
        return [(ops[k % 3], random.randrange(2), 2 ** random.randrange(14, 26), random.choice([0.0, 1e-5, 1e-4, 1e-3]))
                for k in range(count)]

    hop = lambda: 3e-6
    case(2, 8, both([(i, (i + 1) % 16) for i in range(16)]), 2, hop, some_calls(6), 1e-5)
    case(4, 4, [(i, i ^ (1 << b)) for i in range(16) for b in range(4)], 4, hop, some_calls(6), 1e-4)
    torus = both([(t * 16 + d, t * 16 + (d + 1) % 16) for t in range(8) for d in range(16)] +
                 [(t * 16 + d, (t + 1) % 8 * 16 + d) for t in range(8) for d in range(16)])
    for switching in (1e-6, 1e-3):
        case(8, 16, torus, 4, hop, [("all_reduce", 0, 2 ** 25, 1e-3), ("all_gather", 1, 2 ** 22, 0.0),
                                    ("reduce_scatter", 1, 2 ** 26, 5e-4)], switching)
    for k in range(50):
        tp, dp = random.choice([(2, 4), (4, 2), (8, 1)])
        order = random.sample(range(8), 8)
        pairs = list(zip(order, order[1:] + order[:1]))
        pairs += [tuple(random.sample(range(8), 2)) for _ in range(random.randrange(14))]
        calls = [c if dp > 1 else (c[0], 0, c[2], c[3]) for c in some_calls(random.randrange(1, 6))]
        case(tp, dp, pairs, random.choice([1, 2, 4]), lambda: random.uniform(1e-6, 9e-6), calls,
             10 ** random.uniform(-6, -2))
    out.close()


main()
