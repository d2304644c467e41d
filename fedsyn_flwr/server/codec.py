"""Between groups of arrays and Flower's messages, for one run and one model."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping
from typing import cast

from flwr.common import FitIns, Parameters, Scalar

from fedsyn_flwr.errors import UserError
from fedsyn_flwr.messages.instruction import TRAIN_LOSS, Instruction
from fedsyn_flwr.messages.payload import Groups, from_parameters, to_parameters
from fedsyn_flwr.messages.schema import Schema, check
from fedsyn_flwr.server.client_versions import ClientVersions
from fedsyn_flwr.server.requests import Reply
from fedsyn_flwr.server.round_record import RoundRecord
from fedsyn_flwr.server.update import Update

MOST_EXAMPLES = 2**40


class MessageCodec:
    """Writes messages and opens answers.

    Parameters
    ----------
    run : str
        Names the run's state on the nodes.
    layout : str
        The model's layout, which both sides check.
    versions : ClientVersions
        Which state each client goes on from.

    Attributes
    ----------
    by_reference : bool
        Whether messages point at shared memory.
    """

    def __init__(self, run: str, layout: str, versions: ClientVersions) -> None:
        self.run, self.layout, self.versions = run, layout, versions
        self.by_reference = False

    def encode(self, groups: Groups) -> Parameters:
        """Groups as they travel."""
        return to_parameters(groups, self.layout, self.by_reference)

    def messages(
        self,
        partitions: Iterable[int],
        phase: str,
        server_round: int,
        pool: int,
        model: tuple[Groups, Parameters],
        extra: Callable[[int], Groups],
        measure: bool = False,
    ) -> dict[int, FitIns]:
        """A message for each client; clients that get the same arrays share their bytes.

        Parameters
        ----------
        partitions : iterable of int
            The clients.
        phase, server_round, pool
            For their instructions.
        model : tuple
            What all of them get, as groups and as it travels.
        extra : callable
            Partition → groups beside it; the same objects where shared.
        measure : bool
            Whether clients are to test their own models.

        Returns
        -------
        dict
            In partition order.
        """
        groups, plain = model
        encoded: dict[tuple[int, ...], Parameters] = {(): plain}
        messages = {}
        for partition in sorted(partitions):
            more = extra(partition)
            key = tuple(id(group) for group in more.values())
            if key not in encoded:
                encoded[key] = self.encode({**groups, **more})
            instruction = Instruction(
                run=self.run,
                number=server_round,
                phase=phase,
                settled=min(self.versions.settled, server_round - 1),
                pool=pool,
                partition=partition,
                measure=measure,
                **self.versions.of(partition),
            )
            messages[partition] = FitIns(encoded[key], instruction.config())
        return messages

    def open(self, reply: Reply, expected: Schema, record: RoundRecord) -> Update | None:
        """Unpack an answer, once it is seen to hold exactly what is expected.

        Its bytes are entered in the record; of one that is missing or refused, the reason.
        """
        record.count("bytes/down", reply.down)
        record.count("bytes/up", reply.up)
        if reply.result is None:
            record.fail(reply.partition, reply.reason)
            return None
        result = reply.result
        try:
            groups = from_parameters(result.parameters, self.layout)
            check(groups, expected)
            check_words(result.num_examples, result.metrics, trained="model" in expected)
        except UserError as error:
            record.reject(reply.partition, str(error))
            return None
        record.costs.add(result.metrics)
        return Update(reply.partition, groups, result.num_examples, result.metrics)


def check_words(examples: object, metrics: Mapping[str, Scalar], trained: bool) -> None:
    """Refuse what an answer says of itself where the server counts on it.

    Raises
    ------
    UserError
        If the number of samples is none, or training on some has no finite loss.
    """
    if type(examples) is not int or not 0 <= examples <= MOST_EXAMPLES:
        raise UserError(f"it says that it has {examples} samples")
    loss = metrics.get(TRAIN_LOSS)
    finite = type(loss) in (int, float) and math.isfinite(cast(float, loss))
    if trained and examples and not finite:
        raise UserError(f"its {TRAIN_LOSS} is {loss!r}, expected a finite number")
