//! Copies of the files with which Linux describes real machines.

use std::cell::RefCell;
use std::fs;
use std::path::{Path, PathBuf};

use mpienv_launch::seam::{Cpus, Topology};
use tempfile::TempDir;

/// A machine's files in a folder.
#[derive(Debug)]
pub struct Machine {
    pub name: String,
    folder: TempDir,
    /// What was read since the last file was written.
    topology: RefCell<Option<Topology>>,
    /// The CPUs that its processes may use.
    pub allowed: Cpus,
}

fn described() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/machines")
}

/// The names of all machines.
pub fn names() -> Vec<String> {
    let files = fs::read_dir(described()).unwrap().map(|entry| entry.unwrap().path());
    let texts = files.filter(|path| path.extension().is_some_and(|name| name == "txt"));
    let mut names: Vec<String> =
        texts.map(|path| path.file_stem().unwrap().to_str().unwrap().to_owned()).collect();
    names.sort();
    assert!(names.len() > 8, "{names:?}");
    names
}

impl Machine {
    /// Writes the machine's files.
    pub fn new(name: &str) -> Machine {
        let text = fs::read_to_string(described().join(format!("{name}.txt"))).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let mut machine = Machine {
            name: name.to_owned(),
            folder,
            topology: RefCell::default(),
            allowed: Cpus::default(),
        };
        let lines: Vec<Vec<&str>> = text
            .lines()
            .filter(|line| !line.starts_with('#'))
            .map(|line| line.split(' ').collect())
            .collect();
        lines.iter().for_each(|words| machine.write_line(words));
        let nodes = lines.iter().filter(|words| words[0] == "node");
        let nodes: Cpus = nodes.map(|words| words[1].parse::<u32>().unwrap()).collect();
        if !nodes.is_empty() {
            machine.write("sys/devices/system/node/online", &nodes.to_string());
            machine.write("sys/devices/system/node/possible", &nodes.to_string());
        }
        machine.write_sockets(&lines);
        machine
    }

    /// The folder that stands for `/`.
    pub fn root(&self) -> &Path {
        self.folder.path()
    }

    pub fn topology(&self) -> Topology {
        self.topology.borrow_mut().get_or_insert_with(|| Topology::read(self.root())).clone()
    }

    /// Writes a file below the folder.
    pub fn write(&self, path: &str, value: &str) {
        *self.topology.borrow_mut() = None;
        let path = self.root().join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, format!("{value}\n")).unwrap();
    }

    fn write_line(&mut self, words: &[&str]) {
        match words {
            ["present", cpus] => {
                self.write("sys/devices/system/cpu/present", cpus);
                self.write("sys/devices/system/cpu/possible", cpus);
                for cpu in list(cpus).iter() {
                    self.write(&format!("sys/devices/system/cpu/cpu{cpu}/online"), "0");
                }
            }
            ["online", cpus] => {
                self.write("sys/devices/system/cpu/online", cpus);
                self.allowed = list(cpus);
                for cpu in self.allowed.iter() {
                    self.write(&format!("sys/devices/system/cpu/cpu{cpu}/online"), "1");
                }
            }
            ["allowed", cpus] => self.allowed = list(cpus),
            ["core", socket, cpus] => {
                for cpu in list(cpus).iter() {
                    let file = |name| format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}");
                    self.write(&file("physical_package_id"), socket);
                    self.write(&file("core_id"), &list(cpus).first().unwrap().to_string());
                    self.write(&file("thread_siblings_list"), cpus);
                    self.write(&file("thread_siblings"), &mask(&list(cpus)));
                }
            }
            ["node", node, cpus @ ..] => {
                let cpus = cpus.first().copied().unwrap_or_default();
                let file = |name| format!("sys/devices/system/node/node{node}/{name}");
                self.write(&file("cpulist"), cpus);
                self.write(&file("cpumap"), &mask(&list(cpus)));
                self.write(&file("meminfo"), &format!("Node {node} MemTotal:       1048576 kB"));
            }
            ["device", address, class, vendor, model, node] => {
                let values = [("class", class), ("vendor", vendor), ("device", model)];
                for (name, value) in values.into_iter().chain([("numa_node", node)]) {
                    self.write(&format!("sys/bus/pci/devices/{address}/{name}"), value);
                }
            }
            _ => panic!("{}: {words:?}", self.name),
        }
    }

    /// Writes which CPUs each socket has, for hwloc.
    fn write_sockets(&self, lines: &[Vec<&str>]) {
        let cores = || lines.iter().filter(|words| words[0] == "core");
        for core in cores() {
            let on_socket = cores().filter(|other| other[1] == core[1]);
            let cpus: Cpus =
                on_socket.flat_map(|other| list(other[2]).iter().collect::<Vec<_>>()).collect();
            for cpu in list(core[2]).iter() {
                let file = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_siblings");
                self.write(&file, &mask(&cpus));
            }
        }
    }
}

pub fn list(text: &str) -> Cpus {
    text.parse().unwrap()
}

/// A set of CPUs as a mask of Linux: words of 32 bits, the highest first.
fn mask(cpus: &Cpus) -> String {
    let words = cpus.iter().max().map_or(1, |last| last / 32 + 1);
    let word = |word: u32| {
        (0..32)
            .filter(|bit| cpus.contains(&(word * 32 + bit)))
            .fold(0_u32, |all, bit| all | 1 << bit)
    };
    let texts: Vec<String> = (0..words).rev().map(|index| format!("{:08x}", word(index))).collect();
    texts.join(",")
}
