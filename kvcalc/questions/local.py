"""A model on this or another machine's devices with llama.cpp: the parameters that ``fit`` and ``size`` share."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from kvcalc.core.errors import InputError, about
from kvcalc.core.readers import flag, memory, names_each, rate, text, texts, whole
from kvcalc.questions.declared import Answer, Question, param
from kvcalc.questions.groups import Engine, Run
from kvcalc.questions.loaded import check_listed, context_of, file_of, is_own_mxfp4, weights_of

if TYPE_CHECKING:
    from kvcalc.core.calibration import Calibration
    from kvcalc.core.reports.common import ExplainedStep
    from kvcalc.engines.llama_cpp.options import LlamaCppOptions
    from kvcalc.engines.llama_cpp.placement import PlacementOptions
    from kvcalc.plan.deployment import Deployment
    from kvcalc.plan.local.setup import LocalSetup, SecondModel

__all__ = ["Local"]

_HEADING = "Devices (llama.cpp)"
_ENGINE = "llama.cpp"
# The recipe that keeps experts in mxfp4.
_OWN_MXFP4 = "mxfp4_moe"
# Parameters of other groups that say how alike GPUs share a model, or what an engine leaves its cache.
_IDLE = (
    "gpus", "tensor_parallel", "pipeline_parallel", "expert_parallel", "data_parallel", "kv_memory",
    "activation_memory", "overhead_memory", "utilization", "method", "draft_layers", "draft_tp",
)  # fmt: skip


def _device(*flags: str, **more: Any) -> Any:
    """Declare a parameter of llama.cpp's placement."""
    return param(*flags, heading=_HEADING, **more)


class Local(Question):
    """Devices, host and placement of llama.cpp."""

    devices: tuple[Any, ...] = _device(
        "--device",
        help="Device in llama.cpp's order: catalogue name, memory (24GiB), this or cpu. May be repeated.",
        read=names_each,
        repeats=True,
    )
    host_memory: int | None = _device("--host-memory", help="Memory of the host: 64GiB.", read=memory)
    host: str | None = _device("--host", help="Host: ddr5-5600x2 (kind, speed, channels) or a processor's name.")
    host_bandwidth: float | None = _device("--host-bandwidth", help="Bandwidth of its memory: 80GB/s.", read=rate)
    pcie: str | None = _device("--pcie", help="PCIe of each device, generation x lanes: 4x16 or 4x16,4x4.")
    used: tuple[str, ...] = _device(
        "--used", help="Memory that other programs take of the first device: 3GiB. May be repeated.",
        read=names_each, repeats=True,
    )  # fmt: skip
    gpu_layers: str | None = _device(
        "--gpu-layers", "-ngl", "--n-gpu-layers", help="Layers on devices: a number, all or auto.", read=text
    )
    tensor_split: str | None = _device("--tensor-split", "-ts", help="Share of each device: 3,1.", read=text)
    n_cpu_moe: int | None = _device(
        "--n-cpu-moe", "-ncmoe", help="First layers whose experts stay on the host.", read=whole
    )
    cpu_moe: bool | None = _device("--cpu-moe", "-cmoe", help="Keep the experts of all layers on the host.", read=flag)
    override_tensor: tuple[str, ...] = _device(
        "--override-tensor", "-ot", help="Tensors and their buffer: exps=CPU. May be repeated.", read=texts,
        repeats=True,
    )  # fmt: skip
    split_mode: str | None = _device("--split-mode", "-sm", help="layer or none.")
    main_gpu: int | None = _device("--main-gpu", "-mg", help="The device of split mode none.", read=whole)
    kv_offload: bool | None = _device(
        "--kv-offload/--no-kv-offload", "-kvo/-nkvo", help="Keep the cache on the device of its layers.", read=flag
    )
    op_offload: bool | None = _device(
        "--op-offload/--no-op-offload", help="Let devices compute large batches of host layers.", read=flag
    )
    mmproj_file: str | None = _device(
        "--mmproj-file", "-mm", help="File of the image projector (.gguf), loaded too.", on_page=False
    )

    # of the groups beside it
    model: Any
    gpu: Any
    engine: str | None
    weights: str | None
    draft: Any = None
    _PLACING: ClassVar[tuple[str, ...]] = (
        "gpu_layers", "tensor_split", "n_cpu_moe", "cpu_moe", "override_tensor", "split_mode", "main_gpu",
        "kv_offload", "op_offload",
    )  # fmt: skip

    @property
    def is_local(self) -> bool:
        """Whether devices were named.

        Raises:
            InputError: options of devices without any, or devices beside what they exclude.
        """
        given = self.given(Local)
        if not given:
            return False
        if not self.devices:
            name = Local.params[next(iter(given))].name
            raise InputError(f"--{name} is of a machine's devices", hint="give --device", parameter=name)
        from kvcalc.engines.checkpoint import FRONTS

        if FRONTS.get(self.engine or "", self.engine) not in (None, _ENGINE):
            raise InputError(
                f"--device is for llama.cpp, not {self.engine}",
                hint=f"add --engine {_ENGINE}, or take --gpu and --gpus",
                parameter="device",
            )
        if self.gpu is not None:
            raise InputError("--gpu and --device are two machines", hint="give one of them", parameter="device")
        return True

    @property
    def is_placed(self) -> bool:
        """Whether the placement was asked for, in part at least: then nothing of it is chosen."""
        given = self.given(Local).keys() & set(self._PLACING)
        chooses = str(self.gpu_layers).strip().lower() == "auto"
        return bool(given - {"gpu_layers"} if chooses else given)

    def local_deployment(self) -> Deployment:
        """Return the model as llama.cpp runs it.

        Raises:
            KvcalcError: as `kvcalc.questions.deployments.placed`, or options that mean nothing on named devices.
        """
        from kvcalc.questions.deployments import placed

        idle = next((name for name in _IDLE if getattr(self, name, None) not in (None, ())), None)
        if idle is not None:
            name = type(self).params[idle].name
            raise InputError(f"--{name} has no part where devices are named", hint="leave it out", parameter=name)
        asked = {name: value for name, value in self.given(Run).items() if name != "memory_bytes"}
        of_engine, engine = self.given(Engine), self.engine or _ENGINE
        deployment = placed(self.model, of_engine, is_started=True, engine=engine, **asked)
        if is_own_mxfp4(deployment):
            asked["weights"] = _OWN_MXFP4
            deployment = placed(self.model, of_engine, is_started=True, engine=engine, **asked)
            note = f"its experts are in mxfp4, which its GGUF file keeps: taken as --weights {_OWN_MXFP4}"
            deployment = replace(deployment, layout_notes=(*deployment.layout_notes, note))
        if deployment.options.front:
            from kvcalc.engines.llama_cpp.fronts import check_placement

            check_placement(
                deployment.options, [Local.params[name].name for name in self._PLACING if name in self.given(Local)]
            )
        return deployment

    def placed_answer(
        self, deployment: Deployment, *, context: int | None, batch: int, together: bool = False
    ) -> Answer:
        """Return the bytes of a deployment on each device and the host, its speed, and the formulas behind them.

        Args:
            deployment: the model as llama.cpp runs it.
            context: tokens of each sequence; the usual default where left out.
            batch: sequences.
            together: whether the context is that of all sequences, and bytes alone are asked for.

        Raises:
            KvcalcError: devices that are not known, options that llama.cpp refuses, a model that is not described.
        """
        from kvcalc.plan.local.answer import OnMachine, local_answer, taken_placement
        from kvcalc.plan.local.memory import local_report

        setup = self.setup(deployment, context=context, batch=batch, together=together)
        options = self.placement(setup)
        front = deployment.options.front
        on = OnMachine(
            setup=setup,
            outer=deployment.formats,
            calibrations={} if together else _calibrations(setup),
            sequences=batch if front and setup.context.kv_unified else None,
        )
        asked = options if self.is_placed else None
        if front and asked is None and setup.devices:
            from kvcalc.plan.local.fronts import fit_note

            fitted = on.fitted(context=setup.context.context)
            asked = options if fitted is None else fitted.options
            on = replace(on, setup=replace(setup, notes=(*setup.notes, fit_note(front))))
        if not together:
            report = local_answer(on, asked)
        else:
            report = local_report(on.setup, asked or (on.chosen() if setup.devices else options))

        def explained() -> tuple[ExplainedStep, ...]:
            from kvcalc.plan.local.explained import explain_places, explain_speed

            steps = explain_places(report)
            if report.speed is None:
                return steps
            return *steps, *explain_speed(on.setup, on.course(taken_placement(on, asked)))

        return Answer(report, explained)

    def setup(self, deployment: Deployment, *, context: int | None, batch: int, together: bool = False) -> LocalSetup:
        """Return the model, its context and the machine; arguments and errors as `placed_answer`."""
        from kvcalc.engines.llama_cpp.weights import model_weights
        from kvcalc.plan.contexts import check_context
        from kvcalc.plan.local.fronts import started_on
        from kvcalc.plan.local.setup import LocalSetup
        from kvcalc.plan.local.words import published_note
        from kvcalc.questions.machines import machine_of

        devices, host, notes = machine_of(
            self.devices,
            memory_bytes=getattr(self, "memory_bytes", None),
            used=self.used,
            pcie=self.pcie,
            host=self.host,
            host_memory=self.host_memory,
            host_bandwidth=self.host_bandwidth,
        )
        check_listed(deployment.model)
        started = started_on(deployment, devices, context=context, batch=batch, together=together)
        deployment = started.deployment
        model, recipe, note = weights_of(deployment)
        asked = context_of(deployment, context=started.context, batch=batch, together=started.together)
        projector = self._projector(deployment)
        beyond = check_context(model, asked.context // asked.parallel)
        is_published = recipe is None and deployment.asked.weights is None and not model.file_tensors
        published = [published_note(model, note)] if is_published else []
        return LocalSetup(
            model=model,
            weights=model_weights(
                model, recipe, imatrix=deployment.options.imatrix, formats=None if recipe else deployment.formats
            ),
            format=note,
            file=file_of(self.model, model, recipe),
            context=asked,
            devices=started.devices,
            host=host,
            draft=self._draft(asked),
            projector_bytes=projector[0],
            projector=projector[1],
            notes=(*notes, *beyond, *started.notes, *published, *deployment.notes, *model.notes),
        )

    def placement(self, setup: LocalSetup) -> PlacementOptions:
        """Return the options of the placement that were given.

        Raises:
            InputError: values that llama.cpp does not take.
        """
        from kvcalc.engines.llama_cpp.placement import PlacementOptions
        from kvcalc.questions.machines import overrides_of, shares_of

        values: dict[str, Any] = {
            name: getattr(self, name)
            for name in ("n_cpu_moe", "cpu_moe", "split_mode", "main_gpu", "kv_offload", "op_offload")
            if getattr(self, name) is not None
        }
        if self.main_gpu is not None and self.engine == "ollama":
            values["split_mode"] = "none"  # which Ollama passes beside it
        return PlacementOptions(
            gpu_layers=_layers(self.gpu_layers),
            tensor_split=shares_of(self.tensor_split),
            overrides=overrides_of(self.override_tensor, setup),
            **values,
        )

    def _draft(self, asked: LlamaCppOptions) -> SecondModel | None:
        """Return the model that drafts, which llama.cpp loads beside the first with a cache in 16 bits."""
        if self.draft is None:
            return None
        from kvcalc.engines.llama_cpp.weights import model_weights
        from kvcalc.plan.local.setup import SecondModel
        from kvcalc.questions.deployments import deployment as deployed

        with about("draft"):
            second = deployed(self.draft, engine=_ENGINE, weights=getattr(self, "draft_weights", None))
            model, recipe, _ = weights_of(second)
            return SecondModel(
                model=model,
                weights=model_weights(model, recipe, formats=None if recipe else second.formats),
                context=replace(asked, cache_type_k="f16", cache_type_v="f16", rollback_tokens=0),
                file=file_of(self.draft, model, recipe),
                tokens=getattr(self, "gamma", None),
            )

    def _projector(self, deployment: Deployment) -> tuple[int, str]:
        """Return the bytes of the projector's weights, and its file."""
        if self.mmproj_file is not None:
            from kvcalc.importers.gguf import read_gguf

            path = Path(self.mmproj_file)
            with about("mmproj-file"):
                return read_gguf(path).table.total_bytes, str(path)
        towers = deployment.model.towers
        if not towers:
            return 0, ""
        from kvcalc.core.formats import parse_format

        size = sum(int(parse_format("fp16").bytes(tower.parameters)) for tower in towers)
        return size, f"mmproj-{deployment.model.name}-f16.gguf"


def _calibrations(setup: LocalSetup) -> dict[int | None, Calibration]:
    """Return the calibration of each device and of the host, where there is one."""
    from kvcalc.plan.estimates import best_calibration
    from kvcalc.sources import engine_calibrations

    known = engine_calibrations(_ENGINE)
    engines = (_ENGINE, f"{_ENGINE}-vulkan")
    host = next((each for each in known if "host" in each.applies_to), None)
    by_device: dict[int | None, Calibration | None] = {None: host}
    for index, device in enumerate(setup.devices):
        by_device[index] = best_calibration(known, device.hardware, engines) if device.hardware is not None else None
    return {where: each for where, each in by_device.items() if each is not None}


def _layers(given: str | None) -> int | None:
    """Return ``--gpu-layers`` as a number; none for all.

    Raises:
        InputError: neither a number nor one of the words.
    """
    if given is None or given.strip().lower() in ("all", "auto"):
        return None
    with about("gpu-layers"):
        return whole(given, "gpu-layers")
