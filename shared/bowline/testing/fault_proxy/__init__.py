"""A proxy between one process and the real API server that injects faults of networks and servers.

``server.FaultProxy`` is what a test uses; ``faults`` and ``rules`` define the faults and when they occur, ``record``
the requests so far. It is no fake API server: undisturbed replies come from the real one.

    from bowline.testing.fault_proxy.faults import FaultAnswer, LoseReply
    from bowline.testing.fault_proxy.rules import CallMatch, FaultRule
    from bowline.testing.fault_proxy.server import FaultProxy

    with FaultProxy(cluster.server, cluster.ca_pem) as proxy:
        kubeconfig = proxy.kubeconfig(of_my_service_account, tmp_path / "kubeconfig")
        bindings = CallMatch(("create",), "pods", "binding")
        proxy.add(FaultRule(LoseReply(), bindings, nth=1), FaultRule(FaultAnswer(429, retry_after_s=1), chance=0.1))
        ...  # run the process with that kubeconfig
        assert [e.code for e in proxy.exchanges() if bindings.covers(e.call)] == [201, 409]
"""
