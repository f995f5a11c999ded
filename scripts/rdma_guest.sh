#!/bin/busybox sh
# The first process of rdma_vm.py's machine: loads modules, makes the host's files the root, links devices by a switch,
# runs /command there and powers off with its status.
busybox=/bin/busybox
for applet in mount mkdir cat insmod chroot poweroff printf dd; do alias $applet="$busybox $applet"; done

finish() {
  echo "machine: up for $(cat /proc/uptime | $busybox cut -d' ' -f1) s"
  [ "$1" -le 127 ] || set -- 126
  printf "$(printf '\\%03o' "$1")" | dd of=/dev/port bs=1 seek=244 2>/dev/null
  poweroff -f
}
fail() { echo "machine: $1" && finish 125; }

mount -t proc proc /proc
mount -t sysfs sys /sys
mount -t devtmpfs dev /dev
for module in /modules/*.ko; do insmod "$module" || fail "cannot load $module"; done

mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose host /low || fail "cannot mount the host's files"
mount -t tmpfs layer /layer
mkdir /layer/upper /layer/work
mount -t overlay -o lowerdir=/low,upperdir=/layer/upper,workdir=/layer/work root /root || fail "cannot layer files"
for fresh in proc sys dev; do mount --bind /$fresh /root/$fresh; done
mount -t tmpfs run /root/run
mkdir -p /root/dev/shm /root/dev/pts
mount -t tmpfs shm /root/dev/shm
mount -t devpts pts /root/dev/pts
cat /command >/root/run/command
cat /devices >/root/run/devices

# Every device is rxeI on interface nI, 10.9.0.I, whose other end pI is a port of the switch br0. All lie in one network
# namespace, the only one that rdma_rxe of this kernel sees: by rules of routing what a device sends goes out on its own
# wire, though the address that it is for is local, too.
cat >/root/run/network <<'NETWORK'
set -e
all=/proc/sys/net/ipv4/conf
echo 0 >$all/all/rp_filter; echo 0 >$all/default/rp_filter
echo 1 >$all/all/arp_ignore; echo 2 >$all/all/arp_announce
ip link set lo up
ip link add br0 type bridge
ip link set br0 mtu 4200 up
ip rule add pref 100 lookup local
ip rule del pref 0
for i in $(seq "$(cat /run/devices)"); do
  ip link add "n$i" mtu 4200 type veth peer name "p$i" mtu 4200
  ip link set "p$i" master br0 up
  ip link set "n$i" up
  echo 1 >$all/n$i/accept_local
  ip addr add "10.9.0.$i/24" dev "n$i"
  ip route add 10.9.0.0/24 dev "n$i" src "10.9.0.$i" table $((100 + i))
  ip route add local "10.9.0.$i" dev "n$i" table $((100 + i))
  ip rule add pref $((10 + i)) iif lo from "10.9.0.$i" lookup $((100 + i))
  rdma link add "rxe$i" type rxe netdev "n$i"
done
NETWORK
chroot /root /bin/sh /run/network || fail "cannot make RDMA devices"
ulimit -l unlimited
echo "machine: ready after $(cat /proc/uptime | $busybox cut -d' ' -f1) s"
chroot /root /bin/sh /run/command
finish $?
