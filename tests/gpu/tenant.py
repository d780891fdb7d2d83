"""A program that uses CUDA on a shared device: ``python tenant.py SEED``, with only the pod's environment.

It uses the driver's own library: only a driver must be there. Names and types are those of NVIDIA's cuda.h;
where that header renames a function (``cuMemAlloc`` is ``cuMemAlloc_v2``), the name here is the exported one.

It prints "ready" when it holds memory of the device, waits for a line on its standard input, runs a kernel repeatedly
for ``RUN_S``, compares every value that the last run wrote, and prints what it did as JSON. Exits with 1 and the name
of the call that failed.
"""

import ctypes
import json
import sys
import time
import uuid
from ctypes import byref, c_char_p, c_int, c_size_t, c_uint, c_ulonglong, c_void_p
from typing import Any

RUN_S = 1.0
BLOCKS, THREADS = 1024, 256
COUNT = BLOCKS * THREADS
HELD_BYTES = 256 << 20
# values[i] = i * i + seed. PTX of an early version: the driver compiles it for its device.
PTX = b"""\
.version 7.0
.target sm_52
.address_size 64
.visible .entry fill(.param .u64 values, .param .u32 seed)
{
  .reg .b32 %r<6>;
  .reg .b64 %rd<3>;
  ld.param.u64 %rd1, [values];
  ld.param.u32 %r1, [seed];
  cvta.to.global.u64 %rd1, %rd1;
  mov.u32 %r2, %ctaid.x; mov.u32 %r3, %ntid.x; mov.u32 %r4, %tid.x;
  mad.lo.u32 %r2, %r2, %r3, %r4;
  mul.wide.u32 %rd2, %r2, 4;
  add.u64 %rd1, %rd1, %rd2;
  mad.lo.u32 %r5, %r2, %r2, %r1;
  st.global.u32 [%rd1], %r5;
  ret;
}
"""


def main() -> None:
    """Run. Raises OSError without a driver."""
    cuda = ctypes.CDLL("libcuda.so.1")

    def call(name: str, *arguments: Any) -> None:
        if code := getattr(cuda, name)(*arguments):
            text = c_char_p()
            cuda.cuGetErrorName(c_int(code), byref(text))
            sys.exit(f"{name}: {(text.value or str(code).encode()).decode()}")

    seed = c_uint(int(sys.argv[1]))
    devices, device, identity = c_int(), c_int(), (ctypes.c_ubyte * 16)()
    context, module, kernel, values = c_void_p(), c_void_p(), c_void_p(), c_ulonglong()
    call("cuInit", c_uint(0))
    call("cuDeviceGetCount", byref(devices))
    call("cuDeviceGet", byref(device), c_int(0))
    call("cuDeviceGetUuid_v2", byref(identity), device)
    call("cuDevicePrimaryCtxRetain", byref(context), device)
    call("cuCtxSetCurrent", context)
    call("cuModuleLoadData", byref(module), c_char_p(PTX))
    call("cuModuleGetFunction", byref(kernel), module, c_char_p(b"fill"))
    call("cuMemAlloc_v2", byref(values), c_size_t(HELD_BYTES))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    sys.stdin.readline()

    began, runs, results = time.monotonic(), 0, (c_uint * COUNT)()
    parameters = (c_void_p * 2)(ctypes.addressof(values), ctypes.addressof(seed))
    one, none = c_uint(1), c_uint(0)
    while time.monotonic() < began + RUN_S:
        grid = (c_uint(BLOCKS), one, one, c_uint(THREADS), one, one)
        call("cuLaunchKernel", kernel, *grid, none, c_void_p(), parameters, c_void_p())
        call("cuCtxSynchronize")
        runs += 1
    call("cuMemcpyDtoH_v2", results, values, c_size_t(ctypes.sizeof(results)))
    ended = time.monotonic()
    wrong = sum(value != (i * i + seed.value) % 2**32 for i, value in enumerate(results))
    name = f"GPU-{uuid.UUID(bytes=bytes(identity))}"
    report = {"device": name, "devices": devices.value, "runs": runs, "wrong": wrong, "began": began, "ended": ended}
    sys.stdout.write(json.dumps(report) + "\n")


if __name__ == "__main__":
    main()
