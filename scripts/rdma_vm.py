"""The virtual machine of rdma-vm.sh: Debian's kernel with rdma_rxe, booted by QEMU from an initramfs made here, with
this machine's files as its root, read-only beneath a layer in memory. Standard library only.

The kernel is unpacked, not installed, and kept in build/rdma-vm. Without virtualisation QEMU translates: a boot takes
some seconds, and speeds measured inside say nothing."""

import argparse
import io
import lzma
import os
import re
import shlex
import subprocess
import sys
import tarfile
import tempfile
import zlib
from pathlib import Path

HERE = Path(__file__).resolve().parent
CACHE = HERE.parent / "build" / "rdma-vm"
NO_MACHINE, LATE = 125, 124
# What is asked for; what these need is found. Built-in ones are not missed.
MODULES = ["virtio_pci", "9p", "9pnet_virtio", "overlay", "crc32_generic", "crc32c_generic", "ib_uverbs", "rdma_rxe",
           "veth", "bridge", "sch_netem"]
# Two nodes of memory, each with two cores of two threads; where QEMU translates, only Intel's processors have threads.
TWO_NODES = ["-smp", "8,sockets=2,cores=2,threads=2",
             *(part for n, cpus in enumerate(("0-3", "4-7")) for part in (
                 "-object", f"memory-backend-ram,id=m{n},size=512M", "-numa", f"node,nodeid={n},cpus={cpus},memdev=m{n}"))]
THREADED = "max,vendor=GenuineIntel,family=6,model=85,stepping=4"
KEPT_VARIABLES = re.compile(r"PATH$|ARK_|GTEST_")


def output(*command):
    return subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout


def kernel_package():
    found = re.search(r"Depends: (linux-image-\d\S+)", output("apt-cache", "depends", "linux-image-amd64"))
    if not found:
        raise LookupError("no Debian package linux-image-amd64 is known; apt-get update may help")
    return found[1]


def uncompressed(image):
    """The kernel proper of a boot image: QEMU starts it at once, and translated code need not unpack it."""
    for magic, unpack in ((b"\xfd7zXZ\0", lzma.LZMADecompressor), (b"\x1f\x8b\x08", lambda: zlib.decompressobj(31))):
        at = image.find(magic)
        while at >= 0:
            try:
                kernel = unpack().decompress(image[at:])
                if kernel.startswith(b"\x7fELF"):
                    return kernel
            except (lzma.LZMAError, zlib.error):
                pass  # bytes that look like the magic
            at = image.find(magic, at + 1)
    raise LookupError("the kernel's image has a compression that is not known here")


def needed(modules):
    """Of {name: bytes}, what MODULES need, in the order of loading."""
    order = []

    def add(name):
        if name not in modules or name in order:
            return
        for other in re.search(rb"\0depends=([^\0]*)", modules[name])[1].decode().split(","):
            add(other.replace("-", "_"))
        order.append(name)

    for name in MODULES:
        add(name)
    return order


def obtain_kernel():
    """A folder with vmlinux and NN-MODULE.ko, by the order of loading."""
    package = kernel_package()
    folder = CACHE / package
    if folder.is_dir():
        return folder
    CACHE.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        subprocess.run(["apt-get", "-qq", "download", package], cwd=temporary, check=True, stderr=subprocess.DEVNULL)
        [deb] = Path(temporary).glob("*.deb")
        modules = {}
        with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", deb], stdout=subprocess.PIPE) as unpack:
            with tarfile.open(fileobj=unpack.stdout, mode="r|") as files:
                for member in files:
                    name = Path(member.name).name
                    if name.startswith("vmlinuz"):
                        image = files.extractfile(member).read()
                    elif name.endswith(".ko"):
                        modules[name.removesuffix(".ko").replace("-", "_")] = files.extractfile(member).read()
        made = Path(temporary) / "made"
        made.mkdir()
        (made / "vmlinux").write_bytes(uncompressed(image))
        for i, name in enumerate(needed(modules)):
            (made / f"{i:02}-{name}.ko").write_bytes(modules[name])
        made.rename(folder)
    return folder


def archive(files):
    """An initramfs: {path: (mode, bytes)}, in cpio's "newc" format."""
    made = io.BytesIO()
    for inode, (path, (mode, content)) in enumerate([*files.items(), ("TRAILER!!!", (0, b""))]):
        numbers = [inode, mode, 0, 0, 1, 0, len(content), 0, 0, 0, 0, len(path) + 1, 0]
        for part in b"070701" + b"".join(b"%08X" % n for n in numbers) + path.encode() + b"\0", content:
            made.write(part + b"\0" * (-len(part) % 4))
    return made.getvalue()


def initramfs(kernel, command, devices):
    variables = "".join(f"export {name}={shlex.quote(value)}\n" for name, value in os.environ.items()
                        if KEPT_VARIABLES.match(name))
    script = f"cd {shlex.quote(os.getcwd())}\n{variables}exec {shlex.join(command)}\n"
    files = {path: (0o040755, b"") for path in ("bin", "dev", "proc", "sys", "modules", "low", "layer", "root")}
    files["bin/busybox"] = (0o100755, Path("/bin/busybox").read_bytes())
    files["init"] = (0o100755, (HERE / "rdma_guest.sh").read_bytes())
    files["devices"] = (0o100644, f"{devices}\n".encode())
    files["command"] = (0o100644, script.encode())
    for module in sorted(kernel.glob("*.ko")):
        files[f"modules/{module.name}"] = (0o100644, module.read_bytes())
    return archive(files)


def boot(kernel, initrd, seconds, two_nodes):
    # Other hosts open /dev/kvm, but some cannot run a common kernel.
    hardware = os.access("/dev/kvm", os.W_OK) and any(Path(f"/sys/module/kvm_{v}").is_dir() for v in ("intel", "amd"))
    translated = ["tcg,thread=multi,tb-size=256", "-cpu", THREADED if two_nodes else "max"]
    accelerator = ["kvm", "-cpu", "host"] if hardware else translated
    command = ["qemu-system-x86_64", "-accel", *accelerator, "-m", "1024", *(TWO_NODES if two_nodes else ["-smp", "2"]),
               "-nodefaults", "-no-user-config", "-no-reboot", "-display", "none", "-serial", "stdio",
               "-kernel", kernel / "vmlinux", "-initrd", initrd,
               "-append", "console=ttyS0 quiet loglevel=3 panic=-1 mitigations=off tsc=reliable no_timer_check",
               "-device", "isa-debug-exit,iobase=0xf4,iosize=1",
               "-virtfs", "local,path=/,mount_tag=host,security_model=none,readonly=on,multidevs=remap"]
    try:
        status = subprocess.run(command, stdin=subprocess.DEVNULL, timeout=seconds).returncode
    except subprocess.TimeoutExpired:
        print(f"rdma-vm.sh: stopped after {seconds} s", file=sys.stderr)
        return LATE
    # The device makes status * 2 + 1 of what the guest writes to it; anything else is QEMU's own.
    if status % 2 == 1:
        return status // 2
    print(f"rdma-vm.sh: the machine ended without a status (QEMU: {status})", file=sys.stderr)
    return NO_MACHINE


def main():
    parser = argparse.ArgumentParser(prog="rdma-vm.sh", description=__doc__.split("\n\n")[0])
    parser.add_argument("--devices", type=int, default=2, help="rxe1 to rxeN, 10.9.0.1 to N, on one switch; %(default)s")
    parser.add_argument("--two-nodes", action="store_true", help="eight CPUs: two nodes of two cores of two threads")
    parser.add_argument("--seconds", type=int, default=300, help="time limit; %(default)s")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    if not args.command:
        parser.error("no command")
    try:
        kernel = obtain_kernel()
    except (LookupError, OSError, subprocess.CalledProcessError) as error:
        print(f"rdma-vm.sh: no kernel with rdma_rxe can be had: {error}", file=sys.stderr)
        return NO_MACHINE
    with tempfile.NamedTemporaryFile(dir=CACHE) as initrd:
        initrd.write(initramfs(kernel, args.command, args.devices))
        initrd.flush()
        return boot(kernel, initrd.name, args.seconds, args.two_nodes)


if __name__ == "__main__":
    sys.exit(main())
