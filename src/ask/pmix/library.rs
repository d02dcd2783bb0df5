//! The C side: a loaded libpmix, and this process as its client.

#![expect(unsafe_code, reason = "libpmix is a C library, and it is loaded at run time")]

use std::ffi::{CStr, CString, OsStr, OsString, c_char, c_int, c_void};
use std::{mem, ptr};

use libloading::Library;

/// Loads the first candidate that can be loaded.
pub(super) fn load(candidates: Vec<OsString>) -> Result<Pmix, String> {
    let mut tried = Vec::new();
    for name in candidates {
        match open(&name) {
            Ok(library) => return Pmix::new(library, name),
            Err(error) => tried.push(format!("{} ({error})", name.display())),
        }
    }
    let remedy = if cfg!(target_feature = "crt-static") {
        "a static mpienv loads no library; use a dynamic one (from pip, or built for glibc), or set MASTER_ADDR"
    } else {
        "install it (Debian: libpmix2), or set MPIENV_PMIX_LIB to the libpmix.so.2 of the launcher"
    };
    Err(format!("cannot load libpmix, tried {}: {remedy}", tried.join(", ")))
}

/// Loads a library. The error is what the loader said, without its wrapping.
fn open(name: &OsStr) -> Result<Library, String> {
    use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
    use std::error::Error as _;
    // Global, because libpmix's plug-ins look up its symbols.
    // SAFETY: libpmix's initializers only set up its own data.
    let opened = unsafe { Library::open(Some(name), RTLD_NOW | RTLD_GLOBAL) };
    let said =
        |error: libloading::Error| error.source().map_or(error.to_string(), |it| it.to_string());
    opened.map(Into::into).map_err(said)
}

// What follows is from the PMIx standard, chapters "Data Structures and Types" and "Client".

/// Stands for the whole job in place of a rank.
pub(super) const RANK_WILDCARD: u32 = u32::MAX - 1;

const BOOL: u16 = 1;
const STRING: u16 = 3;
const UINT16: u16 = 13;
pub(super) const UINT32: u16 = 14;
const PROC_RANK: u16 = 40;

/// `pmix_proc_t`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Proc {
    nspace: [c_char; 256],
    rank: u32,
}

/// `pmix_value_t`.
#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

/// The union in `pmix_value_t`: the members that are read, and the largest one.
#[repr(C)]
#[derive(Clone, Copy)]
union Data {
    flag: bool,
    string: *mut c_char,
    uint16: u16,
    uint32: u32,
    largest: [u64; 3],
}

/// `pmix_info_t`.
#[repr(C)]
struct Info {
    key: [c_char; 512],
    flags: u32,
    value: Value,
}

// The layout in the headers of PMIx 4.2.
#[cfg(target_pointer_width = "64")]
const _: () = {
    assert!(size_of::<Proc>() == 260 && mem::offset_of!(Proc, rank) == 256);
    assert!(size_of::<Value>() == 32 && mem::offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && mem::offset_of!(Info, value) == 520);
};

type Init = unsafe extern "C" fn(*mut Proc, *mut Info, usize) -> c_int;
type Get =
    unsafe extern "C" fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
type Finalize = unsafe extern "C" fn(*const Info, usize) -> c_int;
unsafe extern "C" {
    fn free(memory: *mut c_void);
}

type ErrorString = unsafe extern "C" fn(c_int) -> *const c_char;

/// The functions of a loaded libpmix.
pub(super) struct Pmix {
    name: OsString,
    init: Init,
    get: Get,
    finalize: Finalize,
    error_string: ErrorString,
}

/// This process as a client of the server, until this is dropped.
pub(super) struct Client {
    pub(super) pmix: Pmix,
    own: Proc,
}

impl Pmix {
    fn new(library: Library, name: OsString) -> Result<Pmix, String> {
        // Never unloaded, because libpmix leaves exit handlers behind.
        let library = mem::ManuallyDrop::new(library);
        // SAFETY: the types are those of the functions in the PMIx standard.
        unsafe {
            Ok(Pmix {
                init: find(&library, &name, "PMIx_Init")?,
                get: find(&library, &name, "PMIx_Get")?,
                finalize: find(&library, &name, "PMIx_Finalize")?,
                error_string: find(&library, &name, "PMIx_Error_string")?,
                name,
            })
        }
    }

    /// Returns the error for a call that has failed.
    pub(super) fn failed(&self, call: &'static str, status: c_int) -> String {
        // SAFETY: the function takes any number, and returns a constant text or null.
        let meaning = unsafe { (self.error_string)(status) };
        // SAFETY: a text of libpmix is terminated, and the library stays loaded.
        let meaning = (!meaning.is_null()).then(|| unsafe { CStr::from_ptr(meaning) });
        let meaning = meaning.map_or("unknown".into(), CStr::to_string_lossy);
        format!(
            "{call} of {} failed with {status} ({meaning}): the launcher's PMIx server is gone or does not fit this \
             library; set MPIENV_PMIX_LIB to the launcher's library, or set MASTER_ADDR",
            self.name.display()
        )
    }
}

/// # Safety
/// The function has the type `T`.
unsafe fn find<T: Copy>(
    library: &Library,
    name: &OsStr,
    function: &'static str,
) -> Result<T, String> {
    // SAFETY: the caller's.
    let symbol = unsafe { library.get::<T>(function) };
    let absent = |_| {
        format!(
            "{} is not a PMIx library, it has no {function}: set MPIENV_PMIX_LIB to the libpmix.so.2 of the launcher",
            name.display()
        )
    };
    symbol.map(|symbol| *symbol).map_err(absent)
}

/// A value, copied from libpmix.
pub(super) enum Got {
    /// A copy of a text.
    Text(String),
    /// A number or a rank.
    Number(u32),
    /// A value of this type, which was not expected.
    Other(u16),
}

impl Client {
    /// Connects to the server that the launcher's variables name, or else to the one at `uri`, as
    /// [`Relay::uri`](super::Relay::uri) writes it.
    pub(super) fn connect(pmix: Pmix, uri: Option<&str>) -> Result<Client, String> {
        let mut own = Proc { nspace: [0; 256], rank: 0 };
        let text = uri.and_then(|uri| CString::new(uri).ok()).map(CString::into_raw);
        let mut server: Vec<_> = text
            .iter()
            .map(|&string| Info::new(c"pmix.srvr.uri", STRING, Data { string }))
            .collect();
        // SAFETY: `own` is a `pmix_proc_t` to write to; as many `pmix_info_t` as are announced
        // follow, whose text libpmix may write to. The text is not freed, because libpmix may refer
        // to it until it finalizes.
        match unsafe { (pmix.init)(&raw mut own, server.as_mut_ptr(), server.len()) } {
            0 => Ok(Client { pmix, own }),
            status => Err(pmix.failed("PMIx_Init", status)),
        }
    }

    /// Returns one value of a rank or of the job, as the server gave it to this client at the
    /// beginning. The error is the status.
    pub(super) fn get(&self, rank: u32, key: &CStr) -> Result<Got, c_int> {
        let proc = Proc { rank, ..self.own };
        // Without this, the server may wait forever for a value that no process provides.
        let optional = Info::new(c"pmix.optional", BOOL, Data { flag: true });
        let mut value: *mut Value = ptr::null_mut();
        // SAFETY: all four point to structures that outlive the call, and one `pmix_info_t` is
        // announced.
        let status = unsafe {
            (self.pmix.get)(&raw const proc, key.as_ptr(), &raw const optional, 1, &raw mut value)
        };
        if status != 0 {
            return Err(status);
        }
        // SAFETY: on success libpmix has stored a pointer to a value that belongs to the caller, or
        // null.
        let got = unsafe { value.as_ref() }.map_or(Got::Other(0), Value::copy);
        // SAFETY: the value comes from malloc, as the standard requires, and nothing refers to it
        // anymore.
        unsafe { free(value.cast()) };
        Ok(got)
    }

    /// Returns this process's rank.
    pub(super) fn rank(&self) -> u32 {
        self.own.rank
    }

    /// Returns the name of this process's job.
    pub(super) fn namespace(&self) -> String {
        // The name ends at a NUL, or fills the array.
        let bytes: Vec<u8> =
            self.own.nspace.iter().map(|&char| char as u8).take_while(|&byte| byte != 0).collect();
        String::from_utf8_lossy(&bytes).into_owned()
    }

    /// Like [`Client::get`], but returns only numbers.
    pub(super) fn number(&self, rank: u32, key: &CStr) -> Option<u32> {
        match self.get(rank, key) {
            Ok(Got::Number(number)) => Some(number),
            _ => None,
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // The result changes nothing, because everything was asked before.
        // SAFETY: PMIx_Init has succeeded, and no further information is given.
        unsafe { (self.pmix.finalize)(ptr::null(), 0) };
    }
}

impl Info {
    /// Creates a directive with a value of this type.
    fn new(key: &CStr, kind: u16, data: Data) -> Info {
        let mut info = Info { key: [0; 512], flags: 0, value: Value { kind, data } };
        for (to, from) in info.key.iter_mut().zip(key.to_bytes()) {
            *to = from.cast_signed() as c_char;
        }
        info
    }
}

impl Value {
    /// Copies the value's content. A text is freed, so that only the value itself remains to be
    /// freed.
    fn copy(&self) -> Got {
        match self.kind {
            // SAFETY: the type says that the union holds a `uint16_t`.
            UINT16 => Got::Number(u32::from(unsafe { self.data.uint16 })),
            // SAFETY: the type says that the union holds a `uint32_t`; a rank is one too.
            UINT32 | PROC_RANK => Got::Number(unsafe { self.data.uint32 }),
            STRING => {
                // SAFETY: the type says that the union holds a text.
                let string = unsafe { self.data.string };
                if string.is_null() {
                    return Got::Other(self.kind);
                }
                // SAFETY: a text of libpmix is terminated, and is freed only after this.
                let text = unsafe { CStr::from_ptr(string) }.to_string_lossy().into_owned();
                // SAFETY: the text comes from malloc and belongs to the value, which is not read
                // again.
                unsafe { free(string.cast()) };
                Got::Text(text)
            }
            other => Got::Other(other),
        }
    }
}
