/* A libnvidia-ml.so.1 for containers on machines without a GPU. It reports the devices that the kubelet allocated,
 * which the fake device plugin puts into NVIDIA_VISIBLE_DEVICES. Signatures are those of NVIDIA's NVML header. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { SUCCESS = 0, INVALID_ARGUMENT = 2, NOT_FOUND = 6 };

static const char *devices(void) {
    const char *value = getenv("NVIDIA_VISIBLE_DEVICES");
    return value ? value : "";
}

int nvmlInit_v2(void) { return SUCCESS; }
int nvmlInitWithFlags(unsigned flags) { (void)flags; return SUCCESS; }
int nvmlShutdown(void) { return SUCCESS; }
const char *nvmlErrorString(int code) { return code == SUCCESS ? "success" : "fake NVML: failed"; }

int nvmlDeviceGetCount_v2(unsigned *count) {
    const char *at = devices();
    *count = *at ? 1 : 0;
    for (; *at; at++) if (*at == ',') ++*count;
    return SUCCESS;
}

int nvmlDeviceGetHandleByIndex_v2(unsigned index, void **handle) {
    unsigned count;
    nvmlDeviceGetCount_v2(&count);
    if (index >= count) return INVALID_ARGUMENT;
    *handle = (void *)(long)(index + 1);
    return SUCCESS;
}

int nvmlDeviceGetUUID(void *handle, char *uuid, unsigned length) {
    long index = (long)handle - 1;
    const char *at = devices();
    while (index-- > 0) {
        at = strchr(at, ',');
        if (!at) return NOT_FOUND;
        at++;
    }
    size_t size = strcspn(at, ",");
    if (size + 1 > length) return INVALID_ARGUMENT;
    memcpy(uuid, at, size);
    uuid[size] = 0;
    return SUCCESS;
}
