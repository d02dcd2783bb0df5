//! Opens files to read. Only regular files are read, so that no reader ever waits.

use std::fs::{self, File, Metadata};
use std::io::{self, Read};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::Path;

use rustix::fs::OFlags;

/// Opens a regular file to read.
///
/// # Errors
/// At once, if nothing can be read there or if it is anything else: a pipe would wait for a writer,
/// possibly forever.
pub fn open(path: &Path) -> io::Result<File> {
    // Look first, because opening a device can have an effect.
    check(&fs::metadata(path).map_err(|error| of_link(path, error))?)?;
    // Reading a regular file is the same with or without `NONBLOCK`, and opening a pipe does not
    // wait for a writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // Look again, because it may have been replaced in between.
    check(&file.metadata()?)?;
    Ok(file)
}

/// Reads a regular file, or nothing if it has more than `most` bytes.
pub fn read(path: &Path, most: u64) -> io::Result<Option<Vec<u8>>> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    if file.metadata()?.len() <= most {
        file.take(most + 1).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= most {
            return Ok(Some(bytes));
        }
    }
    Ok(None)
}

/// Describes what is not a regular file: "is a pipe and not a regular file".
pub fn other_kind(found: &Metadata) -> Option<String> {
    (!found.is_file()).then(|| format!("is {} and not a regular file", kind(found.file_type())))
}

fn check(found: &Metadata) -> io::Result<()> {
    let refusal = |kind| io::Error::new(io::ErrorKind::InvalidInput, format!("it {kind}"));
    other_kind(found).map_or(Ok(()), |kind| Err(refusal(kind)))
}

/// Says of a symbolic link that leads nowhere that it is one.
fn of_link(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => {
            let reason =
                format!("it is a symbolic link to {}, which does not exist", target.display());
            io::Error::new(error.kind(), reason)
        }
        _ => error,
    }
}

fn kind(found: fs::FileType) -> &'static str {
    match found {
        found if found.is_char_device() || found.is_block_device() => "a device",
        found if found.is_fifo() => "a pipe",
        found if found.is_socket() => "a socket",
        found if found.is_dir() => "a folder",
        _ => "something else",
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_regular_file_is_read_to_its_end_also_through_a_link() {
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("file"), folder.path().join("link"));
        fs::write(&file, vec![7; 1 << 20]).unwrap();
        symlink("file", &link).unwrap();
        for path in [file, link] {
            let mut bytes = Vec::new();
            open(&path).unwrap().read_to_end(&mut bytes).unwrap();
            assert_eq!(bytes, vec![7; 1 << 20]);
        }
    }

    #[test]
    fn anything_else_is_named_at_once() {
        let folder = tempfile::tempdir().unwrap();
        let at = |name: &str| folder.path().join(name);
        rustix::fs::mkfifoat(rustix::fs::CWD, at("pipe"), rustix::fs::Mode::RUSR).unwrap();
        symlink("pipe", at("link")).unwrap();
        symlink("nowhere", at("dangling")).unwrap();
        let _listener = std::os::unix::net::UnixListener::bind(at("socket")).unwrap();
        for (path, text) in [
            (at("pipe"), "it is a pipe and not a regular file"),
            (at("link"), "it is a pipe and not a regular file"),
            (at("socket"), "it is a socket and not a regular file"),
            (at(""), "it is a folder and not a regular file"),
            ("/dev/zero".into(), "it is a device and not a regular file"),
            (at("dangling"), "it is a symbolic link to nowhere, which does not exist"),
            (at("missing"), "No such file or directory (os error 2)"),
        ] {
            assert_eq!(open(&path).unwrap_err().to_string(), text, "{}", path.display());
        }
    }
}
