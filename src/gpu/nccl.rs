//! NCCL: sums over the devices of all ranks.
//!
//! NCCL waits forever for a rank that is lost. So every call returns at once here (a communicator
//! that does not block), and this rank asks until NCCL is done, has failed, or the time is up. Then
//! the ranks that are left meet in their group, which names the one that is not.

#![expect(unsafe_code, reason = "NCCL is a C library, and it is loaded at run time")]

use std::cell::Cell;
use std::collections::BTreeMap;
use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::marker::PhantomData;
use std::sync::{Arc, OnceLock};
use std::thread;
use std::time::{Duration, Instant};

use cudarc::driver::{CudaSlice, CudaStream, DevicePtrMut};
use mpienv_collective::Group;
use mpienv_core::Environment;
use serde::{Deserialize, Serialize};

use crate::library::load_nccl;
use crate::{GpuError, Result};

/// How long NCCL may take to connect or to sum, unless [`Communicator::within`] says otherwise.
const TIMEOUT: Duration = Duration::from_secs(300);
/// How long a rank asks again and again before it sleeps in between.
const SPIN: Duration = Duration::from_millis(2);
const NAP: Duration = Duration::from_micros(200);
/// `ncclFloat32` and `ncclSum`.
const FLOAT_32: c_int = 7;
const SUM: c_int = 0;
/// `ncclSuccess`, and `ncclInProgress`, which calls of a communicator that does not block return.
const SUCCESS: c_int = 0;
const IN_PROGRESS: c_int = 7;

/// `ncclComm_t`.
type Comm = *mut c_void;

/// `ncclUniqueId`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Id([c_char; 128]);

/// `ncclConfig_t` of NCCL 2.17, which later versions take too: `version` tells them.
#[repr(C)]
struct Config {
    size: usize,
    magic: c_uint,
    version: c_uint,
    blocking: c_int,
    cga_cluster_size: c_int,
    min_ctas: c_int,
    max_ctas: c_int,
    net_name: *const c_char,
    split_share: c_int,
}

/// `NCCL_CONFIG_UNDEF_INT`.
const UNSET: c_int = c_int::MIN;
/// The oldest NCCL that has such a configuration.
const OLDEST: c_int = 21_700;

impl Config {
    fn without_blocking() -> Config {
        Config {
            size: size_of::<Config>(),
            magic: 0xcafe_beef,
            version: OLDEST.unsigned_abs(),
            blocking: 0,
            cga_cluster_size: UNSET,
            min_ctas: UNSET,
            max_ctas: UNSET,
            net_name: std::ptr::null(),
            split_share: UNSET,
        }
    }
}

/// NCCL's functions: <https://docs.nvidia.com/deeplearning/nccl/user-guide/docs/api.html>.
struct Nccl {
    version: c_int,
    get_unique_id: unsafe extern "C" fn(*mut Id) -> c_int,
    init: unsafe extern "C" fn(*mut Comm, c_int, Id, c_int, *mut Config) -> c_int,
    async_error: unsafe extern "C" fn(Comm, *mut c_int) -> c_int,
    all_reduce: unsafe extern "C" fn(
        *const c_void,
        *mut c_void,
        usize,
        c_int,
        c_int,
        Comm,
        *mut c_void,
    ) -> c_int,
    abort: unsafe extern "C" fn(Comm) -> c_int,
    error_string: unsafe extern "C" fn(c_int) -> *const c_char,
    last_error: unsafe extern "C" fn(Comm) -> *const c_char,
}

impl Nccl {
    /// The library, which is loaded once and stays loaded.
    fn get() -> Result<&'static Nccl> {
        static LOADED: OnceLock<Result<Nccl>> = OnceLock::new();
        LOADED.get_or_init(Nccl::load).as_ref().map_err(Clone::clone)
    }

    fn load() -> Result<Nccl> {
        let library = Box::leak(Box::new(load_nccl()?));
        /// # Safety
        /// `F` is the function's type.
        unsafe fn function<F: Copy>(library: &libloading::Library, name: &str) -> Result<F> {
            let remedy = "install NCCL 2.17 or newer, and put its folder first on LD_LIBRARY_PATH";
            // SAFETY: the caller gives the type.
            let found = unsafe { library.get::<F>(name.as_bytes()) };
            let missing = |_| GpuError::new(format!("NCCL has no function {name}"), remedy);
            found.map(|found| *found).map_err(missing)
        }
        // SAFETY: the types are those of nccl.h.
        unsafe {
            let get_version: unsafe extern "C" fn(*mut c_int) -> c_int =
                function(library, "ncclGetVersion")?;
            let mut version = 0;
            let code = get_version(&mut version);
            if code != SUCCESS {
                let what = format!("cannot ask NCCL for its version: it returns {code}");
                let remedy = "set NCCL_DEBUG=INFO and look at what NCCL prints";
                return Err(GpuError::new(what, remedy));
            }
            if version < OLDEST {
                return Err(GpuError::new(
                    format!("NCCL is {}, and 2.17 or newer is needed", text_of(version)),
                    "install a newer one (pip install nvidia-nccl-cu13; CUDA 12: nvidia-nccl-cu12), and put \
                     its folder first on LD_LIBRARY_PATH",
                ));
            }
            Ok(Nccl {
                version,
                get_unique_id: function(library, "ncclGetUniqueId")?,
                init: function(library, "ncclCommInitRankConfig")?,
                async_error: function(library, "ncclCommGetAsyncError")?,
                all_reduce: function(library, "ncclAllReduce")?,
                abort: function(library, "ncclCommAbort")?,
                error_string: function(library, "ncclGetErrorString")?,
                last_error: function(library, "ncclGetLastError")?,
            })
        }
    }

    fn unique_id(&self) -> Result<Id> {
        let mut id = Id([0; 128]);
        // SAFETY: NCCL fills the id.
        let code = unsafe { (self.get_unique_id)(&mut id) };
        self.checked("make an id", code, std::ptr::null_mut())?;
        Ok(id)
    }

    /// Returns an error, with what NCCL last said, unless a call has been made or goes on.
    fn checked(&self, purpose: &str, code: c_int, comm: Comm) -> Result<()> {
        if [SUCCESS, IN_PROGRESS].contains(&code) {
            return Ok(());
        }
        let text = |pointer: *const c_char| match pointer.is_null() {
            true => String::new(),
            // SAFETY: NCCL returns text that ends with a zero and stays until its next call.
            false => unsafe { CStr::from_ptr(pointer) }.to_string_lossy().into_owned(),
        };
        // SAFETY: NCCL takes any code, and no communicator for its last error at all.
        let (name, said) = unsafe { ((self.error_string)(code), (self.last_error)(comm)) };
        Err(GpuError::from_nccl(purpose, &text(name), &text(said)))
    }
}

/// Returns NCCL's version, such as `2.28.9`.
///
/// # Errors
/// NCCL is missing, or older than 2.17.
pub fn nccl_version() -> Result<String> {
    Nccl::get().map(|nccl| text_of(nccl.version))
}

fn text_of(version: c_int) -> String {
    let (major, rest) = (version / 10_000, version % 10_000);
    format!("{major}.{}.{}", rest / 100, rest % 100)
}

/// What a rank shows the others before NCCL connects.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
struct Introduction {
    host: String,
    /// By which name NCCL knows the host, if a user has chosen one.
    nccl_host: Option<String>,
    /// NCCL's version, the device's UUID and rank 0's id, or why the rank cannot connect.
    ready: Result<(String, String, Option<Vec<u8>>)>,
}

/// The devices of all ranks of a group, connected by NCCL.
///
/// Each rank has one device, that of its stream. All ranks make the same calls in the same order.
#[derive(Debug)]
pub struct Communicator {
    nccl: &'static Nccl,
    /// Null once it has been aborted.
    comm: Cell<Comm>,
    stream: Arc<CudaStream>,
    timeout: Duration,
    /// Only the thread that has the communicator may call NCCL.
    one_thread: PhantomData<*mut ()>,
}

/// The version stands for the functions.
impl std::fmt::Debug for Nccl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "NCCL {}", text_of(self.version))
    }
}

impl Communicator {
    /// Connects the devices of all ranks of `group`, each with its own `stream`.
    ///
    /// # Errors
    /// All ranks get an error if one of them has no NCCL, if the versions differ, if two ranks use
    /// one device, or if NCCL does not connect: the error names the rank that is lost.
    pub fn new(group: &mut Group, stream: &Arc<CudaStream>) -> Result<Communicator> {
        Communicator::within(group, stream, TIMEOUT)
    }

    /// Like [`Communicator::new`], with a limit in time for this call and later ones.
    ///
    /// # Errors
    /// As [`Communicator::new`].
    pub fn within(
        group: &mut Group,
        stream: &Arc<CudaStream>,
        timeout: Duration,
    ) -> Result<Communicator> {
        let (own, size) = (group.rank().index(), group.size());
        let nccl = Nccl::get();
        let uuid = stream.context().uuid();
        let uuid = uuid.map_err(|error| GpuError::from_driver("ask for the device's UUID", error));
        // A rank that fails says so: the others would wait for it.
        let ready = nccl.clone().and_then(|nccl| {
            let id = (own == 0).then(|| nccl.unique_id()).transpose()?;
            let id = id.map(|id| id.0.map(|byte| byte as u8).to_vec());
            Ok((text_of(nccl.version), format!("{:?}", uuid?.bytes), id))
        });
        let environment = Environment::current();
        let introduction = Introduction {
            host: mpienv_core::host_name().unwrap_or_default(),
            nccl_host: environment.get("NCCL_HOSTID").map(|id| id.to_string_lossy().into_owned()),
            ready,
        };
        let known = introduced(group, &introduction)?;
        check(&known)?;
        let mut id = Id([0; 128]);
        let sent = known.first().and_then(|one| one.ready.as_ref().ok()?.2.as_ref());
        for (byte, sent) in id.0.iter_mut().zip(sent.into_iter().flatten()) {
            *byte = *sent as c_char;
        }
        let (nccl, mut comm) = (nccl?, std::ptr::null_mut());
        let count = |number: u32| c_int::try_from(number).unwrap_or(c_int::MAX);
        let mut config = Config::without_blocking();
        let bound = stream.context().bind_to_thread();
        let bound = bound.map_err(|error| GpuError::from_driver("use the device", error));
        // SAFETY: NCCL writes the communicator, and reads the id and the configuration.
        let init = |()| unsafe { (nccl.init)(&mut comm, count(size), id, count(own), &mut config) };
        let begun = bound.map(init);
        let communicator = Communicator {
            nccl,
            comm: Cell::new(comm),
            stream: Arc::clone(stream),
            timeout,
            one_thread: PhantomData,
        };
        let connected = begun
            .and_then(|code| communicator.checked("connect", code))
            .and_then(|()| communicator.until("connect", || Ok(true)));
        // All have connected, or none.
        settle(group, connected)?;
        Ok(communicator)
    }

    /// Adds the numbers of all ranks, each to all: in the stream, so this returns before it is done.
    /// [`Communicator::wait`] waits for it.
    ///
    /// # Errors
    /// NCCL refuses.
    pub fn all_reduce_sum(&self, numbers: &mut CudaSlice<f32>) -> Result<()> {
        let count = numbers.len();
        let (pointer, _written) = numbers.device_ptr_mut(&self.stream);
        let (from, into) = (pointer as *const c_void, pointer as *mut c_void);
        let stream = self.stream.cu_stream().cast();
        // SAFETY: the numbers are on the device, and stay there while the stream uses them.
        let code = unsafe {
            (self.nccl.all_reduce)(from, into, count, FLOAT_32, SUM, self.comm.get(), stream)
        };
        self.checked("sum", code)?;
        self.until("sum", || Ok(true))
    }

    /// Waits until the stream has done all that was asked for.
    ///
    /// # Errors
    /// NCCL has failed, or the time is up: the ranks meet in `group`, and the error names the rank
    /// that is lost. The communicator can no longer be used.
    pub fn wait(&self, group: &mut Group) -> Result<()> {
        let wrong = |error| GpuError::from_driver("wait for the device", error);
        let event = self.stream.record_event(None).map_err(wrong);
        // The event stays until NCCL has ended: to free it can wait for the stream.
        let done = match &event {
            Ok(event) => self.until("sum", || event.try_is_complete().map_err(wrong)),
            Err(error) => Err(error.clone()),
        };
        match done {
            Ok(()) => Ok(()),
            Err(error) => {
                // Ends NCCL's kernels, which would keep the device forever.
                self.end();
                settle(group, Err(error))
            }
        }
    }

    /// Asks NCCL until it is done, and what comes after it too.
    fn until(&self, purpose: &str, mut is_done: impl FnMut() -> Result<bool>) -> Result<()> {
        let begun = Instant::now();
        loop {
            let mut state = SUCCESS;
            // SAFETY: the communicator is one of NCCL's, which writes the state.
            let code = unsafe { (self.nccl.async_error)(self.comm.get(), &mut state) };
            self.checked(purpose, code)?;
            self.checked(purpose, state)?;
            if state == SUCCESS && is_done()? {
                return Ok(());
            }
            let waited = begun.elapsed();
            if waited >= self.timeout {
                return Err(GpuError::new(
                    format!("NCCL did not {purpose} within {} s", self.timeout.as_secs()),
                    "look at the other ranks' output, and set NCCL_DEBUG=INFO",
                ));
            }
            if waited >= SPIN {
                thread::sleep(NAP);
            }
        }
    }

    fn checked(&self, purpose: &str, code: c_int) -> Result<()> {
        self.nccl.checked(purpose, code, self.comm.get())
    }

    /// Ends what NCCL does, without the other ranks.
    fn end(&self) {
        let comm = self.comm.replace(std::ptr::null_mut());
        if !comm.is_null() {
            // SAFETY: the communicator is one of NCCL's. Its memory stays until the process ends
            // if this fails.
            let _ = unsafe { (self.nccl.abort)(comm) };
        }
    }
}

impl Drop for Communicator {
    fn drop(&mut self) {
        self.end();
    }
}

/// Gives all ranks what each of them has to say of itself.
fn introduced(group: &mut Group, own: &Introduction) -> Result<Vec<Introduction>> {
    let bytes = serde_json::to_vec(own).unwrap_or_default();
    let all = group.all_gather(&bytes).map_err(of_group)?;
    let unreadable =
        || GpuError::new("a rank's introduction cannot be read", "run one version on all hosts");
    all.iter().map(|bytes| serde_json::from_slice(bytes).map_err(|_| unreadable())).collect()
}

/// A device that several ranks of one host use.
#[doc(hidden)]
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SharedDevice<'a> {
    /// Its UUID.
    pub uuid: &'a str,
    /// The ranks that use it.
    pub ranks: Vec<u32>,
    /// The first two of them that NCCL refuses. It takes ranks with different names of the host
    /// (`NCCL_HOSTID`) for those of several hosts.
    pub refused: Option<[u32; 2]>,
}

/// The host of a rank, the UUID of its device, and its `NCCL_HOSTID`.
#[doc(hidden)]
pub type DeviceOfRank<'a> = (&'a str, &'a str, Option<&'a str>);

/// Returns the devices that several ranks use. A rank without a device is `None`.
#[doc(hidden)]
pub fn shared_devices<'a>(
    ranks: impl IntoIterator<Item = Option<DeviceOfRank<'a>>>,
) -> Vec<SharedDevice<'a>> {
    let mut users = BTreeMap::<_, Vec<_>>::new();
    for (rank, place) in (0..).zip(ranks) {
        if let Some((host, uuid, name)) = place {
            users.entry((host, uuid)).or_default().push((rank, name));
        }
    }
    let several = users.into_iter().filter(|(_, users)| users.len() > 1);
    let shared = several.map(|((_, uuid), users)| {
        let refused = users.iter().enumerate().find_map(|(at, &(rank, name))| {
            let (other, _) = users[..at].iter().find(|(_, other)| *other == name)?;
            Some([*other, rank])
        });
        SharedDevice { uuid, ranks: users.into_iter().map(|(rank, _)| rank).collect(), refused }
    });
    shared.collect()
}

/// Finds what NCCL would refuse, or fail at later.
fn check(known: &[Introduction]) -> Result<()> {
    let place = |rank: usize| format!("rank {rank} on {}", known[rank].host);
    let mut devices = Vec::new();
    let mut first: Option<&str> = None;
    for (rank, one) in known.iter().enumerate() {
        let (version, uuid, _) = one.ready.as_ref().map_err(|error| {
            GpuError::new(format!("{}: {error}", place(rank)), "then start all ranks again")
        })?;
        let first = *first.get_or_insert(version);
        if version != first {
            return Err(GpuError::new(
                format!("{} has NCCL {first}, and {} has {version}", place(0), place(rank)),
                "install one version on all hosts, and put the same one first on LD_LIBRARY_PATH",
            ));
        }
        devices.push(Some((one.host.as_str(), uuid.as_str(), one.nccl_host.as_deref())));
    }
    let refused = shared_devices(devices).into_iter().find_map(|shared| shared.refused);
    refused.map_or(Ok(()), |ranks| {
        let [one, other] = ranks.map(|rank| place(rank as usize));
        Err(GpuError::new(
            format!("{one} and {other} use the same GPU, which NCCL refuses"),
            "start as many ranks on each host as it has GPUs; to test with fewer GPUs, give each \
             rank another NCCL_HOSTID",
        ))
    })
}

/// Lets the ranks tell each other how they fared. If one has failed, each gets an error: the group's,
/// which names the rank that is lost, or the first rank's.
fn settle(group: &mut Group, own: Result<()>) -> Result<()> {
    let text = own.as_ref().err().map(ToString::to_string).unwrap_or_default();
    let all = group.all_gather(text.as_bytes()).map_err(of_group)?;
    own?;
    let failed = all.iter().position(|text| !text.is_empty());
    failed.map_or(Ok(()), |rank| {
        let text = String::from_utf8_lossy(&all[rank]).into_owned();
        Err(GpuError::new(format!("rank {rank}: {text}"), "then start all ranks again"))
    })
}

fn of_group(error: mpienv_collective::CollectiveError) -> GpuError {
    GpuError::new(error.to_string(), "look at that rank's output and at its host's log (dmesg)")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn rank(host: &str, uuid: &str) -> Introduction {
        Introduction {
            host: host.to_owned(),
            nccl_host: None,
            ready: Ok(("2.28.9".to_owned(), uuid.to_owned(), None)),
        }
    }

    #[test]
    fn what_nccl_would_refuse_is_found_before_it_is_called() {
        let error = |known: &[Introduction]| check(known).unwrap_err().what().to_owned();
        assert!(check(&[rank("a", "1"), rank("a", "2"), rank("b", "1")]).is_ok());
        let twice = [rank("a", "1"), rank("b", "1"), rank("a", "1")];
        assert!(error(&twice).starts_with("rank 0 on a and rank 2 on a use the same GPU"));
        let mut apart = twice.clone();
        apart[2].nccl_host = Some("other".to_owned());
        assert!(check(&apart).is_ok());
        let mut newer = rank("b", "1");
        newer.ready = Ok(("2.29.1".to_owned(), "1".to_owned(), None));
        let text = error(&[rank("a", "1"), newer]);
        assert_eq!(text, "rank 0 on a has NCCL 2.28.9, and rank 1 on b has 2.29.1");
        let mut without = rank("b", "1");
        without.ready = Err(GpuError::new("there is no NCCL", "install it"));
        assert_eq!(error(&[rank("a", "1"), without]), "rank 1 on b: there is no NCCL; install it");
    }

    #[test]
    fn a_version_is_read_as_nccl_writes_it() {
        assert_eq!([text_of(22_809), text_of(21_705)], ["2.28.9", "2.17.5"]);
    }
}
