"""Prints the CPUs that torchrun's --numa-binding gives to each local rank, on the machines of tests/machines.

Runs PyTorch's own code (torch.numa.binding) on copies of their files. `core-complex` is left out, because the copies have no
caches. With the argument --check, fails if tests/machines/torchrun.table has another text.
"""

import builtins
import pathlib
import sys
import tempfile
import types

import torch.numa.binding as binding

MACHINES = pathlib.Path(__file__).parent.parent / "machines"
MODES = [binding.AffinityMode.NODE, binding.AffinityMode.SOCKET, binding.AffinityMode.EXCLUSIVE]


def unpack(text, root):
    """Writes the files that torchrun reads, and returns the CPUs that are online and the devices' addresses."""

    def write(path, value):
        path = root / path
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(value + "\n")

    online, nodes, devices = "", [], []
    for words in (line.split() for line in text.splitlines() if not line.startswith("#")):
        match words:
            case ["online", online]:
                pass
            case ["core", package, cpus]:
                for cpu in binding._get_set_of_int_from_ranges_str(cpus):
                    folder = f"sys/devices/system/cpu/cpu{cpu}/topology"
                    write(f"{folder}/physical_package_id", package)
                    write(f"{folder}/thread_siblings_list", cpus)
            case ["node", node, cpus]:
                nodes.append(node)
                write(f"sys/devices/system/node/node{node}/cpulist", cpus)
            case ["device", address, _, _, _, node]:
                devices.append(address)
                write(f"sys/bus/pci/devices/{address}/numa_node", node)
    write("sys/devices/system/node/possible", ",".join(nodes))
    return binding._get_set_of_int_from_ranges_str(online), devices


def device(address):
    domain, bus, rest = address.split(":")
    return types.SimpleNamespace(
        pci_domain_id=int(domain, 16), pci_bus_id=int(bus, 16), pci_device_id=int(rest.split(".")[0], 16)
    )


def table():
    lines = []
    for file in sorted(MACHINES.glob("*.txt")):
        if "\ndevice " not in (text := file.read_text()):
            continue
        with tempfile.TemporaryDirectory() as folder:
            root = pathlib.Path(folder)
            online, addresses = unpack(text, root)
            binding.open = lambda path, *rest, root=root: builtins.open(root / path.lstrip("/"), *rest)
            binding._get_allowed_cpu_indices_for_current_thread = lambda online=online: online
            binding._get_device_count = lambda count=len(addresses): count
            properties = lambda index, addresses=addresses: device(addresses[index])
            accelerator = types.SimpleNamespace(is_available=lambda: True, current_accelerator=lambda: "cuda")
            module = types.SimpleNamespace(get_device_properties=properties)
            binding.torch = types.SimpleNamespace(accelerator=accelerator, get_device_module=lambda _, module=module: module)
            for mode in MODES:
                for rank in range(len(addresses)):
                    options = binding.NumaOptions(affinity_mode=mode)
                    cpus = binding._get_logical_cpus_to_bind_to(device_index=rank, numa_options=options)
                    lines.append(f"{file.stem} {mode.value} {rank} {binding._get_ranges_str_from_ints(cpus)}\n")
    return "".join(lines)


found = "# Printed by tests/real_programs/numa_choice.py: machine, mode, local rank, CPUs.\n" + table()
sys.stdout.write(found)
if "--check" in sys.argv:
    expected = (MACHINES / "torchrun.table").read_text()
    sys.exit(0 if found == expected else "torchrun chooses other CPUs than tests/machines/torchrun.table has")
