"""Defects in what both processes use: the framework and the client."""

from tests.mutants.mutant import Mutant

_FRAMEWORK = "shared/bowline/framework/"
_KUBE = "shared/bowline/kube/"

FRAMEWORK = (
    Mutant(
        "memory-survives-rollback",
        "A plugin's memory of a request survives its rollback.",
        f"{_FRAMEWORK}binding/runner.py",
        "        finally:\n            self._end_states(ctx.request.uid)",
        "        finally:\n            pass",
    ),
    Mutant(
        "memory-during-rollback",
        "A plugin sees in its rollback what it has remembered of the attempt.",
        f"{_FRAMEWORK}binding/runner.py",
        "        self._end_states(ctx.request.uid)\n        try:",
        "        try:",
    ),
    Mutant(
        "rollback-in-order",
        "Plugins roll back in the order in which they have prepared.",
        f"{_FRAMEWORK}binding/runner.py",
        "for plugin in reversed(self._plugins[point]) if",
        "for plugin in self._plugins[point] if",
    ),
    Mutant(
        "neighbours-not-cancelled",
        "A plugin's failure does not cancel the parallel calls of the others.",
        f"{_FRAMEWORK}binding/runner.py",
        "                    failure = failures[0]\n"
        "                    for task in pending:\n"
        "                        task.cancel()\n",
        "                    failure = failures[0]\n",
    ),
    Mutant(
        "metadata-of-two-plugins",
        "Of two plugins that set one annotation to different values the second is silently dropped.",
        f"{_FRAMEWORK}binding/runner.py",
        "if self.entries.get(key, value) != value",
        "if self.entries.get(key, value) is None",
    ),
    Mutant(
        "missing-effects-after-failure",
        "A plugin that fails to state whether it may have side effects is taken to have none.",
        f"{_FRAMEWORK}binding/runner.py",
        "return isinstance(result, Status) or result",
        "return not isinstance(result, Status) and result",
    ),
    Mutant(
        "release-without-effects",
        "A plugin that has a release and no rollback is not recorded, and not called when the decision is abandoned.",
        f"{_FRAMEWORK}binding/runner.py",
        "methods = (point, BindingPlugin.release) if point is BindingPlugin.rollback else (point,)",
        "methods = (point,)",
    ),
    Mutant(
        "exception-ends-the-request",
        "An exception of a plugin is no defect that is waited for.",
        f"{_FRAMEWORK}binding/calls.py",
        "return Status.wait(why, retry_after=DEFECT_POLL, timeout=UNLIMITED).from_plugin(plugin)",
        "return Status.fatal(why).from_plugin(plugin)",
    ),
    Mutant(
        "unreadable-undone",
        "An object that cannot be read makes a rollback fail for ever.",
        f"{_FRAMEWORK}binding/calls.py",
        "            if point in _UNDOING:\n",
        "            if not point:\n",
        live=("tests/reconciler/test_unreadable.py",),
    ),
    Mutant(
        "api-time-charged",
        "Time that a plugin waits for the API server is charged to its budget as a failure of its own.",
        f"{_FRAMEWORK}binding/calls.py",
        "            if budget.is_api_time:\n",
        "            if budget.is_api_time and not budget.is_out:\n",
    ),
    Mutant(
        "renew-deadline-unchecked",
        "A renewDeadline shorter than the retryPeriod is accepted.",
        f"{_FRAMEWORK}config.py",
        "if not election.lease_duration > election.renew_deadline > election.retry_period:",
        "if not election.lease_duration > election.renew_deadline:",
    ),
    Mutant(
        "off-is-false",
        "An unquoted Off, which YAML reads as false, is no admission mode.",
        f"{_FRAMEWORK}config.py",
        'return "Off" if value is False else value',
        "return value",
    ),
    Mutant(
        "own-namespace-in-scope",
        "Pods of Bowline's own namespace are reviewed.",
        f"{_FRAMEWORK}admission.py",
        "(*SYSTEM_NAMESPACES, *settings.namespaces.exclude, own_namespace)",
        "(*SYSTEM_NAMESPACES, *settings.namespaces.exclude)",
    ),
    Mutant(
        "no-ratchet",
        "A pod with an error from before is denied every unrelated change.",
        f"{_FRAMEWORK}admission.py",
        "errors=tuple(error for error in verdict.errors if error not in before))",
        "errors=tuple(verdict.errors))",
        live=("tests/pair/test_admission_live.py",),
    ),
    Mutant(
        "mirror-pods-reviewed",
        "The kubelet's mirror pods are reviewed.",
        f"{_FRAMEWORK}admission.py",
        "        if names.MIRROR_POD in annotations:\n            return ALLOWED\n",
        "",
    ),
    Mutant(
        "patch-beside-errors",
        "In mode Warn a pod with errors is patched.",
        f"{_FRAMEWORK}admission.py",
        "return Verdict(warnings=(*errors, *self.warnings))",
        "return Verdict((), (*errors, *self.warnings), self.patch)",
    ),
    Mutant(
        "new-pods-denied-in-deletion",
        "A pod that is being deleted is denied the removal of its finalizer.",
        f"{_FRAMEWORK}admission.py",
        "        if _is_ending(raw, info):\n            return ALLOWED\n        early = self._early_verdict(raw, info)\n        if early is not None:\n            return early\n        verdict",
        "        early = self._early_verdict(raw, info)\n        if early is not None:\n            return early\n        verdict",
    ),
    Mutant(
        "request-of-any-name",
        "A request is for the pod that it names, whatever its own name is.",
        "shared/bowline/api/bindrequest.py",
        'self.key if _raw_text(self.raw, "podName") == self.key.name else ObjectKey(self.key.namespace, "")',
        'ObjectKey(self.key.namespace, _raw_text(self.raw, "podName"))',
    ),
    Mutant(
        "name-not-denied",
        "A new request may have another name than its pod.",
        f"{_FRAMEWORK}admission.py",
        "    misnamed = name_error(raw) if old is None else None\n",
        "    misnamed = name_error(raw) if raw is None else None\n",
    ),
)

KUBE = (
    Mutant(
        "any-reply-disproves",
        "Any reply about an object proves that an unguarded write to it cannot land any more.",
        f"{_KUBE}writes.py",
        "if write.target != target or not write.guard or write.guard == version or write.lost_at is None",
        "if write.target != target or write.guard == version or write.lost_at is None",
        simulation=("late",),
    ),
    Mutant(
        "cancelled-write-forgotten",
        "A write whose caller is cancelled is forgotten.",
        f"{_KUBE}writes.py",
        "        except BaseException:\n            if write.is_sent:\n                write.lose(now())\n            else:\n"
        "                self._writes.remove(write)\n            raise\n",
        "        except BaseException:\n            self._writes.remove(write)\n            raise\n",
        simulation=("late",),
    ),
    Mutant(
        "lost-write-forgotten",
        "A write whose reply is lost is forgotten.",
        f"{_KUBE}writes.py",
        "if isinstance(error, InfrastructureError) and error.may_have_been_applied:",
        "if isinstance(error, InfrastructureError) and not error.may_have_been_applied:",
        simulation=("late", "share/withdraw/executed late"),
    ),
    Mutant(
        "lease-never-expires",
        "A standby takes each read of the Lease for a renewal, so that it never takes it over.",
        f"{_KUBE}lease.py",
        'if self._lease is None or lease.get("spec") != self._lease.get("spec"):',
        'if self._lease is None or lease.get("spec"):',
        live=("tests/kube/test_lease.py",),
        simulation=("kill",),
    ),
    Mutant(
        "lease-counted-from-the-reply",
        "A renewal counts from its reply, not from when it was sent.",
        f"{_KUBE}lease.py",
        "        self._observe(await self._client.update(LEASES, namespace, name, body, essential=essential))\n"
        "        self._renewed_at = started_at\n",
        "        self._observe(await self._client.update(LEASES, namespace, name, body, essential=essential))\n"
        "        self._renewed_at = self._client.clock.monotonic()\n",
        simulation=("late", "share-pause"),
    ),
    Mutant(
        "any-process-of-the-host",
        "A Lease of another process on the same host is taken over at once.",
        f"{_KUBE}lease.py",
        'return "_" in container and holder != identity',
        "return holder != identity",
    ),
    Mutant(
        "writes-of-a-release-trusted",
        "A Lease that was released without a record counts as one whose writes are answered.",
        f"{_KUBE}lease.py",
        "return answered != renew_time and now - renewed_at <= in_flight + MAX_CLOCK_ERROR",
        "return answered not in (None, renew_time) and now - renewed_at <= in_flight + MAX_CLOCK_ERROR",
        live=("tests/kube/test_lease.py",),
        simulation=("kill", "late"),
    ),
    Mutant(
        "restored-lease-unnoticed",
        "A Lease that is older than the one that was read before does not end the process.",
        f"{_KUBE}lease.py",
        "        if self._newest and is_older(version, self._newest):\n",
        "        if not version and is_older(version, self._newest):\n",
        live=("tests/reconciler/test_restored_storage.py",),
    ),
    Mutant(
        "restore-in-outage-unnoticed",
        "A watch goes on after an outage in which etcd may have been restored.",
        f"{_KUBE}reflector.py",
        "return lost_at is not None and self._client.clock.monotonic() - lost_at >= _SHORT_DISCONNECT_S",
        "return False",
        live=("tests/reconciler/test_restored_storage.py",),
        simulation=("restores",),
    ),
    Mutant(
        "deletion-between-lists-missed",
        "An object that was deleted between two lists stays in the cache.",
        f"{_KUBE}reflector.py",
        "        for key in [key for key in self.store if key not in listed_keys]:\n"
        "            self._drop_object(key, None)\n",
        "",
        live=("tests/kube/test_reflector.py",),
        simulation=("lag",),
    ),
    Mutant(
        "recreation-between-lists-missed",
        "An object that was created again between two lists is reported as changed.",
        f"{_KUBE}reflector.py",
        "        if uid is not None and uid != uid_of(new):\n",
        "        if uid is not None and not uid_of(new):\n",
        live=("tests/kube/test_reflector.py",),
    ),
    Mutant(
        "expired-watch-resumed",
        "A watch whose version is expired is opened at that version again.",
        f"{_KUBE}reflector.py",
        "        if needs_list(error) or self._fruitless >= _FRUITLESS_WATCHES:\n",
        "        if self._fruitless >= _FRUITLESS_WATCHES:\n",
        live=("tests/kube/test_reflector.py",),
        simulation=("lag",),
    ),
    Mutant(
        "silent-watch-resumed",
        "A watch in which nothing was received for minutes is opened at its version again.",
        f"{_KUBE}reflector.py",
        "            if events or asyncio.get_running_loop().time() - opened_at < _MAX_SILENCE_S:\n                raise\n",
        "            if events or opened_at:\n                raise\n",
    ),
    Mutant(
        "unguarded-patches",
        "Patches have no precondition.",
        f"{_KUBE}object_client.py",
        "        return await self._call(call, path, body, content_type, essential=essential)\n",
        "        if isinstance(body, Mapping):\n"
        '            guards = ("uid", "resourceVersion")\n'
        '            unguarded = {name: value for name, value in body.get("metadata", {}).items() if name not in guards}\n'
        '            body = {**body, "metadata": unguarded}\n'
        "        return await self._call(call, path, body, content_type, essential=essential)\n",
        simulation=("general",),
    ),
    Mutant(
        "unguarded-deletes",
        "A delete ignores its resourceVersion.",
        f"{_KUBE}object_client.py",
        'for key, value in (("uid", uid), ("resourceVersion", resource_version)) if value}',
        'for key, value in (("uid", uid),) if value}',
        live=("tests/kube/test_client.py",),
        simulation=("releases", "kill"),
    ),
    Mutant(
        "unfenced-writes",
        "Writes are sent after the Lease is lost.",
        f"{_KUBE}client.py",
        "is_fenced=body is not None and call.resource not in _UNFENCED,",
        'is_fenced=body is not None and call.resource not in _UNFENCED and call.verb == "create",',
        live=("tests/reconciler/test_leadership.py",),
    ),
    Mutant(
        "altered-object-accepted",
        "An object that a webhook has stored otherwise than written is accepted.",
        f"{_KUBE}object_client.py",
        "        require_stored(call.resource, call.key, essential or {}, reply)\n",
        "",
    ),
    Mutant(
        "binding-repeated-in-withdrawal",
        "A Binding without a reply is repeated although its request was withdrawn.",
        f"{_KUBE}binding.py",
        "partial(_send, stopping if is_last else None)",
        "partial(_send, None)",
    ),
    Mutant(
        "rejection-after-lost-reply",
        "A Binding that is rejected after one without a reply counts as rejected.",
        f"{_KUBE}binding.py",
        "outcome = BindOutcome.UNKNOWN if may_be_applied else BindOutcome.REFUSED",
        "outcome = BindOutcome.REFUSED",
        live=("tests/kube/test_binding.py",),
    ),
)

MUTANTS = (*FRAMEWORK, *KUBE)
