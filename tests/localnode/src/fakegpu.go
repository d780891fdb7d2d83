// Command fakegpu makes GPUs up for a kubelet: a device plugin for nvidia.com/gpu, or with -dra a DRA driver.
//
// As a device plugin it answers Allocate with NVIDIA_VISIBLE_DEVICES and mounts a fake NVML library, as NVIDIA's
// plugin and container toolkit would; while the file of -by-cdi exists, with CDI names instead of the variable. As a DRA driver it publishes a ResourceSlice and prepares each allocated device
// as a CDI device that sets one environment variable in the container.
package main

import (
	"context"
	"encoding/json"
	"flag"
	"fmt"
	"log"
	"net"
	"os"
	"path/filepath"
	"strings"
	"time"

	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	pluginapi "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const (
	resource = "nvidia.com/gpu"
	endpoint = "fakegpu.sock"
	driver   = "gpu.fake.example"
)

var (
	count      = flag.Int("devices", 4, "how many devices exist")
	nvml       = flag.String("nvml", "", "library to mount as libnvidia-ml.so.1")
	plugins    = flag.String("plugins", "/var/lib/kubelet/device-plugins", "the kubelet's folder for device plugins")
	dra        = flag.Bool("dra", false, "be a DRA driver instead of a device plugin")
	kubeconfig = flag.String("kubeconfig", "", "credentials of the DRA driver")
	node       = flag.String("node", "", "the node's name, for the DRA driver")
	byCDI      = flag.String("by-cdi", "", "file whose existence makes the device plugin answer with CDI names")
	cdi        = flag.String("cdi", "/var/run/cdi", "folder for CDI specifications")
)

func uuid(index int) string { return fmt.Sprintf("GPU-00000000-0000-0000-0000-%012d", index) }

func main() {
	flag.Parse()
	var err error
	if *dra {
		err = serveClaims(context.Background())
	} else {
		err = serveDevices()
	}
	log.Fatal(err)
}

// --- device plugin ---

type devicePlugin struct {
	pluginapi.UnimplementedDevicePluginServer
}

func (devicePlugin) GetDevicePluginOptions(context.Context, *pluginapi.Empty) (*pluginapi.DevicePluginOptions, error) {
	return &pluginapi.DevicePluginOptions{}, nil
}

func (devicePlugin) ListAndWatch(_ *pluginapi.Empty, stream grpc.ServerStreamingServer[pluginapi.ListAndWatchResponse]) error {
	devices := make([]*pluginapi.Device, *count)
	for index := range devices {
		devices[index] = &pluginapi.Device{ID: uuid(index), Health: pluginapi.Healthy}
	}
	if err := stream.Send(&pluginapi.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (devicePlugin) Allocate(_ context.Context, request *pluginapi.AllocateRequest) (*pluginapi.AllocateResponse, error) {
	response := &pluginapi.AllocateResponse{}
	for _, container := range request.ContainerRequests {
		allocated := &pluginapi.ContainerAllocateResponse{}
		if _, err := os.Stat(*byCDI); err == nil {
			for _, id := range container.DevicesIds {
				device := &pluginapi.CDIDevice{Name: "k8s.device-plugin.nvidia.com/gpu=" + id}
				allocated.CdiDevices = append(allocated.CdiDevices, device)
			}
		} else {
			allocated.Envs = map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(container.DevicesIds, ",")}
		}
		if *nvml != "" {
			allocated.Mounts = []*pluginapi.Mount{{
				HostPath: *nvml, ContainerPath: "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1", ReadOnly: true,
			}}
		}
		response.ContainerResponses = append(response.ContainerResponses, allocated)
	}
	log.Printf("allocated %v", request)
	return response, nil
}

// serveDevices serves and registers. A kubelet that starts removes the socket: then it serves and registers again.
func serveDevices() error {
	socket := filepath.Join(*plugins, endpoint)
	if err := os.MkdirAll(*plugins, 0o755); err != nil {
		return err
	}
	for {
		if err := os.Remove(socket); err != nil && !os.IsNotExist(err) {
			return err
		}
		listener, err := net.Listen("unix", socket)
		if err != nil {
			return err
		}
		server := grpc.NewServer()
		pluginapi.RegisterDevicePluginServer(server, devicePlugin{})
		go server.Serve(listener)
		registered := false
		for {
			if _, err := os.Stat(socket); err != nil {
				break
			}
			if !registered && register() == nil {
				registered = true
				log.Printf("registered %d devices", *count)
			}
			time.Sleep(200 * time.Millisecond)
		}
		server.Stop()
	}
}

func register() error {
	target := "unix://" + filepath.Join(*plugins, "kubelet.sock")
	connection, err := grpc.NewClient(target, grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		return err
	}
	defer connection.Close()
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Second)
	defer cancel()
	_, err = pluginapi.NewRegistrationClient(connection).Register(ctx, &pluginapi.RegisterRequest{
		Version: pluginapi.Version, Endpoint: endpoint, ResourceName: resource, Options: &pluginapi.DevicePluginOptions{},
	})
	return err
}

// --- DRA driver ---

type claimPlugin struct{}

func (claimPlugin) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		var result kubeletplugin.PrepareResult
		for _, allocated := range claim.Status.Allocation.Devices.Results {
			if allocated.Driver != driver {
				continue
			}
			id, err := writeSpec(claim.UID, allocated.Device)
			if err != nil {
				result.Err = err
				break
			}
			result.Devices = append(result.Devices, kubeletplugin.Device{
				Requests: []string{allocated.Request}, PoolName: allocated.Pool, DeviceName: allocated.Device,
				CDIDeviceIDs: []string{id},
			})
		}
		results[claim.UID] = result
	}
	return results, nil
}

func (claimPlugin) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		matches, err := filepath.Glob(filepath.Join(*cdi, string(claim.UID)+"-*.json"))
		for _, match := range matches {
			if err = os.Remove(match); err != nil {
				break
			}
		}
		results[claim.UID] = err
	}
	return results, nil
}

func (claimPlugin) HandleError(_ context.Context, err error, message string) {
	log.Printf("%s: %v", message, err)
}

func writeSpec(claim types.UID, device string) (string, error) {
	name := string(claim) + "-" + device
	text, err := json.Marshal(map[string]any{
		"cdiVersion": "0.5.0",
		"kind":       driver + "/gpu",
		"devices": []any{map[string]any{
			"name":           name,
			"containerEdits": map[string]any{"env": []string{"FAKE_GPU_DEVICE=" + device}},
		}},
	})
	if err != nil {
		return "", err
	}
	if err := os.MkdirAll(*cdi, 0o755); err != nil {
		return "", err
	}
	file := filepath.Join(*cdi, name+".json")
	if err := os.WriteFile(file+".new", text, 0o644); err != nil {
		return "", err
	}
	return driver + "/gpu=" + name, os.Rename(file+".new", file)
}

func serveClaims(ctx context.Context) error {
	config, err := clientcmd.BuildConfigFromFlags("", *kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	folder := filepath.Join(filepath.Dir(*plugins), "plugins", driver)
	if err := os.MkdirAll(folder, 0o755); err != nil {
		return err
	}
	registry := filepath.Join(filepath.Dir(*plugins), "plugins_registry")
	if err := os.MkdirAll(registry, 0o755); err != nil {
		return err
	}
	helper, err := kubeletplugin.Start(ctx, claimPlugin{},
		kubeletplugin.KubeClient(client), kubeletplugin.NodeName(*node), kubeletplugin.DriverName(driver),
		kubeletplugin.PluginDataDirectoryPath(folder),
		kubeletplugin.RegistrarDirectoryPath(registry))
	if err != nil {
		return err
	}
	devices := make([]resourceapi.Device, *count)
	for index := range devices {
		devices[index] = resourceapi.Device{Name: fmt.Sprintf("gpu-%d", index)}
	}
	pool := resourceslice.Pool{Slices: []resourceslice.Slice{{Devices: devices}}}
	resources := resourceslice.DriverResources{Pools: map[string]resourceslice.Pool{*node: pool}}
	if err := helper.PublishResources(ctx, resources); err != nil {
		return err
	}
	log.Printf("published %d devices", *count)
	select {}
}
