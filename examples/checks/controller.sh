#!/bin/sh
# Answers the check "network" of plugin `checks` with kubectl alone: each pod gets an address of a small pool before it is bound,
# and the address is free again when its BindCheck goes. The objects are the only state, so it may be killed and started again.
set -eu

ADDRESSES="${ADDRESSES:-10.0.0.1 10.0.0.2}"
NO_NETWORK="${NO_NETWORK:-}" # the node that has none
SELECTOR=bowline.dev/check=network
FINALIZER=example.com/address

# Every object as: namespace name node deletionTimestamp address Ready, with <none> for what is missing.
checks() {
    kubectl get bindchecks --all-namespaces --selector="$SELECTOR" --no-headers --output=custom-columns='NS:.metadata.namespace,N:.metadata.name,NODE:.spec.node,ENDS:.metadata.deletionTimestamp,A:.metadata.annotations.example\.com/address,R:.status.conditions[?(@.type=="Ready")].status'
}

# answer NAMESPACE NAME STATUS REASON MESSAGE
answer() {
    kubectl patch bindcheck "$2" --namespace="$1" --subresource=status --type=merge --patch="{\"status\":{\"conditions\":[
        {\"type\":\"Ready\",\"status\":\"$3\",\"reason\":\"$4\",\"message\":\"$5\"}]}}"
}

free_address() {
    used=" $(checks | while read -r _ _ _ _ address _; do printf '%s ' "$address"; done)"
    for address in $ADDRESSES; do
        case "$used" in *" $address "*) ;; *) echo "$address"; return ;; esac
    done
}

# decide NAMESPACE NAME NODE ENDS ADDRESS READY
decide() {
    if [ "$4" != "<none>" ]; then # deleted: the address is returned
        if [ "$5" != "<none>" ]; then
            kubectl patch bindcheck "$2" --namespace="$1" --type=merge --patch='{"metadata":{"finalizers":null}}'
        fi
    elif [ "$6" = True ] || [ "$6" = False ]; then
        return
    elif [ "$3" = "$NO_NETWORK" ]; then
        answer "$1" "$2" False NoNetwork "node $3 has no network"
    elif [ "$5" != "<none>" ]; then # taken before this program was killed
        answer "$1" "$2" True Assigned "address $5"
    elif address=$(free_address) && [ -n "$address" ]; then
        kubectl patch bindcheck "$2" --namespace="$1" --type=merge \
            --patch="{\"metadata\":{\"finalizers\":[\"$FINALIZER\"],\"annotations\":{\"example.com/address\":\"$address\"}}}"
        answer "$1" "$2" True Assigned "address $address"
    elif [ "$6" = "<none>" ]; then
        answer "$1" "$2" Unknown Exhausted "all addresses are taken"
    fi
}

# Every change of one object is the occasion to look at all: an address that is returned ends another's wait.
while :; do
    kubectl get bindchecks --all-namespaces --selector="$SELECTOR" --watch --output=name | while read -r _; do
        checks | while read -r namespace name node ends address ready; do
            # An object that has changed or gone in the meantime is looked at again.
            decide "$namespace" "$name" "$node" "$ends" "$address" "$ready" </dev/null || true
        done
    done
    sleep 1 # the watch has ended
done
