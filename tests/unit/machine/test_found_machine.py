"""This machine by its tools: stand-ins on the path that print what real ones printed in public threads.

RTX 4090s: https://github.com/RLinf/RLinf/issues/255. GB10: https://github.com/XuehaiPan/nvitop/pull/208. RX 7900 XT:
https://github.com/marimo-team/marimo/issues/9237. RX 6800 beside a processor's GPU:
https://github.com/mudler/LocalAI/pull/7761. Strix Halo: https://github.com/noamsto/nix-amd-ai/issues/42 (driver) and
https://github.com/cyring/CoreFreq/issues/561 (modules). DDR5-6000: https://github.com/cyring/CoreFreq/issues/378.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from kvcalc import machine
from kvcalc.cli.main import main
from kvcalc.core.units import MIB
from kvcalc.machine.outputs import memory_modules, nvidia_accelerators
from kvcalc.questions import ask

_4090S = """\
0, NVIDIA GeForce RTX 4090, 24564, 507, 550.163.01, 4, 16
1, NVIDIA GeForce RTX 4090, 24564, 459, 550.163.01, 4, 16
"""
_GB10 = "0, NVIDIA GB10, [N/A], [N/A], 580.173.02, [N/A], [N/A]\n"
_GB10_MEMORY = "MemTotal:       127600748 kB\nMemFree:        100000000 kB\nMemAvailable:   118566368 kB\n"
_7900 = {
    "card0": {
        "GPU use (%)": "0",
        "VRAM Total Memory (B)": "21458059264",
        "VRAM Total Used Memory (B)": "27856896",
        "Card Series": "Radeon RX 7900 XT",
        "Card Model": "0x744c",
        "GFX Version": "gfx1100",
    }
}
_6800 = {
    "card0": {
        "VRAM Total Memory (B)": "17163091968",
        "VRAM Total Used Memory (B)": "692142080",
        "Card Series": "Navi 21 [Radeon RX 6800/6800 XT / 6900 XT]",
    },
    "card1": {
        "VRAM Total Memory (B)": "67108864",
        "VRAM Total Used Memory (B)": "26079232",
        "Card Series": "Raphael",
    },
}
_MODULE = """\
Handle 0x0015, DMI type 17, 92 bytes
Memory Device
\tTotal Width: {width} bits
\tData Width: {width} bits
\tSize: {size}
\tLocator: {locator}
\tBank Locator: {bank}
\tType: {kind}
\tSpeed: {rated} MT/s
\tConfigured Memory Speed: {speed} MT/s
"""
_EMPTY = "Memory Device\n\tSize: No Module Installed\n\tLocator: DIMM 0\n\tSpeed: Unknown\n\tConfigured Memory Speed: Unknown\n"


def _module(bank: str, *, kind: str = "DDR5", speed: int = 6000, width: int = 64, locator: str = "DIMM 1") -> str:
    return _MODULE.format(bank=bank, kind=kind, speed=speed, rated=4800, width=width, locator=locator, size="16 GB")


class Stand:
    """A system of stand-ins: tools on the path and files under a root of its own."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.root, self.tools = folder / "root", folder / "tools"
        self.root.mkdir()
        self.tools.mkdir()
        monkeypatch.setenv("PATH", str(self.tools))
        monkeypatch.setattr(machine, "System", self.system)

    def system(self, **options: Any) -> Any:
        from kvcalc.machine.tools import System

        return System(root=self.root, folders=(), **options)

    def tool(self, name: str, prints: str = "", *, code: int = 0, sleeps: float = 0) -> None:
        """Make a tool that prints a text; one that sleeps does so first."""
        path, text = self.tools / name, self.tools / f"{name}.txt"
        text.write_text(prints)
        path.write_text(
            f"#!{sys.executable} -IS\nimport sys, time\ntime.sleep({sleeps})\n"
            f"print(open({str(text)!r}).read(), end='')\nsys.exit({code})\n"
        )
        path.chmod(0o755)

    def sysctl(self, values: dict[str, str]) -> None:
        path = self.tools / "sysctl"
        path.write_text(
            f"#!{sys.executable} -IS\nimport sys\nvalues = {values!r}\nname = sys.argv[2]\n"
            "print(values[name]) if name in values else sys.exit(1)\n"
        )
        path.chmod(0o755)

    def file(self, path: str, text: str) -> None:
        (self.root / path).parent.mkdir(parents=True, exist_ok=True)
        (self.root / path).write_text(text)


@pytest.fixture
def stand(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Stand:
    return Stand(tmp_path, monkeypatch)


def test_nothing_is_found_where_nothing_is_there(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    report = ask("devices", {})
    assert (report.devices, report.host.memory_bytes, report.host.cpu, report.host.card) == ((), None, "", None)
    assert any("no GPU was found" in note for note in report.notes)
    with pytest.raises(SystemExit) as done:
        main(["devices", "--json"])
    assert done.value.code == 0
    assert json.loads(capsys.readouterr().out)["devices"] == []
    assert stand.tools.is_dir()


def test_nvidias_cards_are_those_of_the_catalogue_with_what_is_in_use(stand: Stand) -> None:
    stand.tool("nvidia-smi", _4090S)
    stand.file("proc/meminfo", "MemTotal: 65536 kB\nMemAvailable: 32768 kB\n")
    report = ask("devices", {})
    assert [each.card for each in report.devices] == ["rtx-4090", "rtx-4090"]
    assert [(each.memory_bytes, each.used_bytes) for each in report.devices] == [
        (24564 * MIB, 507 * MIB), (24564 * MIB, 459 * MIB),
    ]  # fmt: skip
    assert (report.devices[0].pcie, report.devices[0].driver) == ("4x16", "550.163.01")
    assert report.devices[0].memory_bandwidth_bytes_per_s == 1.008e12
    assert (report.host.memory_bytes, report.host.used_bytes) == (64 * MIB, 32 * MIB)
    assert not any("CUDA_DEVICE_ORDER" in note for note in report.notes)


def test_the_memory_tells_variants_of_a_card_apart_and_unlike_cards_have_an_order(stand: Stand) -> None:
    stand.tool(
        "nvidia-smi",
        "0, NVIDIA GeForce RTX 5060 Ti, 8151, 1, 580.1, 5, 8\n1, NVIDIA GeForce RTX 5060 Ti, 16311, 1, 580.1, 5, 8\n",
    )
    report = ask("devices", {})
    assert [each.card for each in report.devices] == ["rtx-5060-ti-8gb", "rtx-5060-ti-16gb"]
    assert any("CUDA_DEVICE_ORDER" in note for note in report.notes)


def test_a_card_that_is_not_in_the_catalogue_is_its_memory_alone(stand: Stand) -> None:
    stand.tool("nvidia-smi", "0, NVIDIA Experimental Z9, 12000, 3, 1.0, 4, 16\n")
    (device,) = ask("devices", {}).devices
    assert (device.card, device.memory_bytes, device.memory_bandwidth_bytes_per_s) == (None, 12000 * MIB, None)


def test_a_gpu_without_memory_of_its_own_shares_the_hosts(stand: Stand) -> None:
    stand.tool("nvidia-smi", _GB10)
    stand.file("proc/meminfo", _GB10_MEMORY)
    (device,) = ask("devices", {}).devices
    assert (device.card, device.unified) == ("dgx-spark", True)
    assert (device.memory_bytes, device.used_bytes) == (127600748 * 1024, (127600748 - 118566368) * 1024)


@pytest.mark.parametrize(
    "text",
    ["", "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver.\n", "No devices were found\n"],
)
def test_an_nvidia_smi_without_cards_tells_of_none(text: str) -> None:
    assert nvidia_accelerators(text) == []


def test_amds_cards_are_those_of_rocm_smi(stand: Stand) -> None:
    stand.tool("rocm-smi", "WARNING: AMD GPU device(s) is/are in a low-power state.\n" + json.dumps(_7900))
    (device,) = ask("devices", {}).devices
    assert (device.card, device.memory_bytes, device.used_bytes, device.unified) == (
        "rx-7900-xt", 21458059264, 27856896, False,
    )  # fmt: skip


def test_a_processors_gpu_beside_a_card_is_known_as_such(stand: Stand) -> None:
    stand.tool("rocm-smi", json.dumps(_6800))
    card, own = ask("devices", {}).devices
    assert (card.memory_bytes, card.unified, own.unified) == (17163091968, False, True)


def test_without_rocm_the_driver_tells_the_memory_and_unified_memory_is_what_it_reaches(stand: Stand) -> None:
    for name, text in {
        "vendor": "0x1002",
        "device": "0x1586",
        "mem_info_vram_total": "4294967296",
        "mem_info_vram_used": "0",
        "mem_info_gtt_total": "103079215104",
        "mem_info_gtt_used": "0",
    }.items():
        stand.file(f"sys/class/drm/card1/device/{name}", text + "\n")
    stand.file("sys/class/drm/card1-DP-1/device/vendor", "0x1002")
    stand.file("proc/cpuinfo", "model name\t: AMD RYZEN AI MAX+ 395 w/ Radeon 8060S\n")
    report = ask("devices", {})
    (device,) = report.devices
    assert (device.memory_bytes, device.unified, device.tool) == (4294967296 + 103079215104, True, "amdgpu")
    assert report.host.card == "strix-halo"


def test_a_mac_is_its_chip_with_its_cores_and_memory(stand: Stand) -> None:
    stand.sysctl(
        {"hw.memsize": str(64 * 1024 * MIB), "machdep.cpu.brand_string": "Apple M4 Max", "iogpu.wired_limit_mb": "0"}
    )
    stand.tool("system_profiler", json.dumps({"SPDisplaysDataType": [{"sppci_cores": "32"}]}))
    stand.tool(
        "vm_stat",
        "Mach Virtual Memory Statistics: (page size of 16384 bytes)\nPages free:          100000.\n"
        "Pages active:        64000.\nPages wired down:    32000.\nPages occupied by compressor:  4000.\n",
    )
    report = ask("devices", {})
    (device,) = report.devices
    assert (device.card, device.unified, device.memory_bytes) == ("m4-max-32", True, 64 * 1024 * MIB)
    assert device.used_bytes == 100_000 * 16384
    assert device.usable_bytes == int(0.75 * 64 * 1024 * MIB)
    assert (report.host.cpu, report.host.memory_bytes) == ("Apple M4 Max", 64 * 1024 * MIB)


def test_metals_limit_is_that_of_sysctl_where_one_is_set(stand: Stand) -> None:
    stand.sysctl(
        {"hw.memsize": str(64 * 1024 * MIB), "machdep.cpu.brand_string": "Apple M2", "iogpu.wired_limit_mb": "57344"}
    )
    (device,) = ask("devices", {}).devices
    assert (device.usable_bytes, device.used_bytes) == (57344 * MIB, None)


def test_a_tool_that_hangs_is_left_after_its_time_and_named(stand: Stand) -> None:
    stand.tool("nvidia-smi", _4090S, sleeps=100)
    started = time.monotonic()
    report = ask("devices", {"timeout": 0.3})
    assert time.monotonic() - started < 60
    assert report.devices == ()
    assert any(note.startswith("nvidia-smi did not answer in time") for note in report.notes)


def test_a_tool_that_fails_or_prints_anything_is_no_error(stand: Stand) -> None:
    stand.tool("nvidia-smi", _4090S, code=9)
    stand.tool("rocm-smi", '{"card0": ["VRAM"], "card1": {"VRAM Total Memory (B)": "x"}, broken')
    stand.tool("dmidecode", "\x00\n\n:\nSize: 1\n")
    stand.file("proc/meminfo", "MemTotal: much\n")
    (stand.tools / "sysctl").symlink_to(stand.tools / "nowhere")
    report = ask("devices", {})
    assert (report.devices, report.host.memory_bytes) == ((), None)


def test_the_modules_tell_the_bandwidth_by_their_channels(stand: Stand) -> None:
    stand.tool("dmidecode", "\n\n".join([_EMPTY, _module("P0 CHANNEL A"), _EMPTY, _module("P0 CHANNEL B")]))
    stand.file("proc/cpuinfo", "model name\t: AMD Ryzen 9 7950X 16-Core Processor\n")
    host = ask("devices", {}).host
    assert (host.cpu, host.memory_kind, host.memory_transfers_per_s) == ("AMD Ryzen 9 7950X", "DDR5", 6e9)
    assert (host.memory_channels, host.memory_bandwidth_bytes_per_s) == (2, 96e9)
    assert host.bandwidth_from == "dmidecode"


@pytest.mark.parametrize(
    ("modules", "channels", "bandwidth"),
    [
        # two modules in one channel count once; the slower of two speeds is that of all
        ([_module("P0 CHANNEL A"), _module("P0 CHANNEL A", locator="DIMM 0"), _module("P0 CHANNEL B", speed=5200)],
         2, 2 * 8 * 5.2e9),
        # Strix Halo: eight modules of 32 bits
        ([_module(f"P0 CHANNEL {name}", kind="LPDDR5", speed=8000, width=32) for name in "ABCDEFGH"], 8, 256e9),
        # two processors with a channel each
        ([_module("P0 CHANNEL A", speed=4800), _module("P1 CHANNEL A", speed=4800)], 2, 76.8e9),
        # Intel's desktops: a slot names its channel
        ([_module("BANK 0", locator="Controller0-DIMMA2", speed=5200),
          _module("BANK 0", locator="Controller1-DIMMB2", speed=5200)], 2, 83.2e9),
        # names that tell no channel
        ([_module("A1_BANK0", locator="A1_DIMM0"), _module("A1_BANK1", locator="A1_DIMM1")], 0, None),
    ],
)  # fmt: skip
def test_bandwidth_is_that_of_channels_that_have_a_module(
    modules: list[str], channels: int, bandwidth: float | None
) -> None:
    found = memory_modules("\n\n".join(modules))
    assert found is not None
    assert (found.modules, found.channels, found.bandwidth_bytes_per_s) == (len(modules), channels, bandwidth)


def test_without_modules_the_profile_of_the_processor_tells_the_bandwidth(stand: Stand) -> None:
    stand.file("proc/cpuinfo", "model name\t: AMD EPYC 9654 96-Core Processor\n")
    host = ask("devices", {}).host
    assert (host.card, host.bandwidth_from) == ("epyc-9654", "profile epyc-9654")
    assert host.memory_bandwidth_bytes_per_s == 460.8e9


@pytest.mark.parametrize(
    ("printed", "card"),
    [
        ("AMD EPYC 7763 64-Core Processor", "epyc-7763"),
        ("AMD EPYC 9554P 64-Core Processor", "epyc-9554"),
        ("AMD Ryzen 9 7950X 16-Core Processor", "ryzen-7950x"),
        ("13th Gen Intel(R) Core(TM) i9-13900K", "core-i9-13900k"),
        ("Intel(R) Core(TM) Ultra 9 285K", "core-ultra-9-285k"),
        ("AMD Ryzen Threadripper PRO 9995WX 96-Cores", "threadripper-9995wx"),
        ("Intel(R) Xeon(R) Platinum 8480+", "xeon-8480"),
    ],
)
def test_processors_are_found_by_the_names_that_linux_prints(stand: Stand, printed: str, card: str) -> None:
    stand.file("proc/cpuinfo", f"model name\t: {printed}\n")
    assert ask("devices", {}).host.card == card


def test_the_table_names_cards_memory_and_host(stand: Stand, capsys: pytest.CaptureFixture[str]) -> None:
    stand.tool("nvidia-smi", _4090S)
    stand.tool("dmidecode", "\n\n".join([_module("P0 CHANNEL A"), _module("P0 CHANNEL B")]))
    stand.file("proc/meminfo", _GB10_MEMORY)
    with pytest.raises(SystemExit):
        main(["devices"])
    printed = capsys.readouterr().out
    assert "2 accelerators, processor unknown: 121.69 GiB of memory, 8.62 GiB in use" in printed
    assert "DDR5-6000, 2 channels; 96.00 GB/s (dmidecode)" in printed
    assert "507.00 MiB" in printed
    assert "PCIe 4x16" in printed


@pytest.mark.parametrize("given", [0, -1, 1e9])
def test_a_time_that_is_none_is_refused(given: float) -> None:
    with pytest.raises(Exception, match="--timeout"):
        ask("devices", {"timeout": given})
