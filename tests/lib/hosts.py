"""Hosts of a test's own: network namespaces with addresses, joined by a bridge in one more. Needs root; `need()` skips with the reason where it is not allowed."""
import os
import subprocess

import ebbtest as t


def _ip(*words):
    return subprocess.run(["ip", *words], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


def need():
    name = f"ebb{os.getpid()}x"
    try:
        _ip("netns", "add", name)
        _ip("-n", name, "link", "add", "veth0", "type", "veth", "peer", "name", "veth1")
        _ip("-n", name, "link", "add", "bridge0", "type", "bridge")
        inside(name, "iptables", "-A", "INPUT", "-s", "10.9.9.9", "-j", "DROP")
        inside(name, "iptables", "-A", "INPUT", "-m", "statistic", "--mode", "random", "--probability", "0.1", "-j", "ACCEPT")
        inside(name, "tc", "qdisc", "add", "dev", "veth0", "root", "tbf", "rate", "100mbit", "burst", "64k", "latency", "50ms")
    except FileNotFoundError as e:
        raise t.Skip(f"'{e.filename}' is not installed")
    except subprocess.CalledProcessError as e:
        raise t.Skip("no network namespaces of one's own: " + (e.stderr or str(e)).strip().splitlines()[-1])
    finally:
        subprocess.run(["ip", "netns", "del", name], stderr=subprocess.DEVNULL)


def inside(namespace, *words):
    return subprocess.run(["nsenter", f"--net=/run/netns/{namespace}", *words], check=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True).stdout


class Hosts:
    """hosts["d"] and so on; the n-th has the address 10.77.0.n."""

    def __init__(self, *names):
        self.mark, self.names = f"ebb{os.getpid()}", names
        self.switch = self.mark + "s"
        made = []
        try:
            _ip("netns", "add", self.switch)
            made.append(self.switch)
            _ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
            _ip("-n", self.switch, "link", "set", "bridge0", "up")
            for i, name in enumerate(names, 1):
                ns = self.namespace(name)
                _ip("netns", "add", ns)
                made.append(ns)
                _ip("link", "add", "eth0", "netns", ns, "type", "veth", "peer", "name", "port" + name, "netns", self.switch)
                _ip("-n", ns, "addr", "add", f"10.77.0.{i}/24", "dev", "eth0")
                _ip("-n", ns, "link", "set", "eth0", "up")
                _ip("-n", ns, "link", "set", "lo", "up")
                _ip("-n", self.switch, "link", "set", "port" + name, "master", "bridge0", "up")
        except BaseException:
            for ns in made:
                subprocess.run(["ip", "netns", "del", ns])
            raise

    def namespace(self, name):
        return self.mark + name

    def address(self, name):
        return f"10.77.0.{self.names.index(name) + 1}"

    def command(self, name, *words):
        """The same command, on that host."""
        return ["nsenter", f"--net=/run/netns/{self.namespace(name)}", *words]

    def cut(self, name, whole=True):
        """Takes the cable out, or puts it back: packets vanish, nobody is told."""
        _ip("-n", self.switch, "link", "set", "port" + name, "down" if whole else "up")

    def lose(self, name, share):
        """So much of what comes to the host, and of what leaves it, is lost."""
        for chain in ("INPUT", "OUTPUT"):
            inside(self.namespace(name), "iptables", "-A", chain, "-m", "statistic", "--mode", "random", "--probability", str(share), "-j", "DROP")

    def deaf(self, name, other):
        """The host drops all that comes from the other, and sends it nothing."""
        inside(self.namespace(name), "iptables", "-A", "INPUT", "-s", self.address(other), "-j", "DROP")
        inside(self.namespace(name), "iptables", "-A", "OUTPUT", "-d", self.address(other), "-j", "DROP")

    def hears(self, name):
        inside(self.namespace(name), "iptables", "-F")

    def slow(self, name, rate):
        inside(self.namespace(name), "tc", "qdisc", "add", "dev", "eth0", "root", "tbf", "rate", rate, "burst", "64k", "latency", "200ms")

    def end(self):
        for name in self.names:
            subprocess.run(["ip", "netns", "del", self.namespace(name)], stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "netns", "del", self.switch], stderr=subprocess.DEVNULL)
