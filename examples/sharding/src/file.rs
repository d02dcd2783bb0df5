//! Files: reading waits for nothing, and a written file is whole or not there.

pub mod folder;
pub mod tensor_file;

use std::fs::{self, File, Metadata};
use std::io::{self, Read, Write};
use std::os::unix::fs::{FileTypeExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use ring::digest::{SHA256, digest};
use rustix::fs::OFlags;
use tempfile::{Builder, NamedTempFile};

/// Opens a regular file to read.
///
/// # Errors
/// At once, if nothing can be read there or if it is anything else: a pipe would wait for a writer,
/// possibly forever.
pub fn open(path: &Path) -> io::Result<File> {
    // Look first, because opening a device can have an effect.
    check_kind(&fs::metadata(path).map_err(|error| link_error(path, error))?, "it ", "")?;
    // Reading a regular file is the same with or without `NONBLOCK`, and opening a pipe does not
    // wait for a writer.
    let flags = (OFlags::NONBLOCK | OFlags::NOCTTY).bits().cast_signed();
    let file = File::options().read(true).custom_flags(flags).open(path)?;
    // Look again, because it may have been replaced in between.
    check_kind(&file.metadata()?, "it ", "")?;
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

/// Refuses what is not a regular file: "{before}is a pipe and not a regular file{after}".
fn check_kind(found: &Metadata, before: &str, after: &str) -> io::Result<()> {
    let kind = match found.file_type() {
        kind if kind.is_file() => return Ok(()),
        kind if kind.is_char_device() || kind.is_block_device() => "a device",
        kind if kind.is_fifo() => "a pipe",
        kind if kind.is_socket() => "a socket",
        kind if kind.is_dir() => "a folder",
        _ => "something else",
    };
    let text = format!("{before}is {kind} and not a regular file{after}");
    Err(io::Error::new(io::ErrorKind::InvalidInput, text))
}

/// Says of a symbolic link that leads nowhere that it is one.
fn link_error(path: &Path, error: io::Error) -> io::Error {
    match fs::read_link(path) {
        Ok(target) if error.kind() == io::ErrorKind::NotFound => {
            let reason =
                format!("it is a symbolic link to {}, which does not exist", target.display());
            io::Error::new(error.kind(), reason)
        }
        _ => error,
    }
}

/// Writes a file under a temporary name, flushes it to disk, then renames it.
///
/// Creates missing folders. An existing file is replaced and its permissions are kept; a symbolic
/// link is followed. Anything other than a regular file is left alone and returned as an error.
pub fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let place = place_of(path)?;
    let written = || {
        fs::create_dir_all(folder_of(&place))?;
        let temporary = temporary(&place)?;
        let mut file = temporary.as_file();
        file.write_all(bytes)?;
        if let Ok(before) = fs::metadata(&place) {
            file.set_permissions(before.permissions())?;
        }
        file.sync_all()?;
        temporary.persist(&place)?;
        flush_name(&place)
    };
    written().map_err(naming(path))
}

/// Resolves symbolic links, even if the file does not exist yet. Fails if `path` exists but is not
/// a regular file.
pub fn place_of(path: &Path) -> io::Result<PathBuf> {
    match fs::metadata(path) {
        Ok(found) => {
            let checked = check_kind(&found, "", "; it is left as it is");
            return checked.and_then(|()| fs::canonicalize(path)).map_err(naming(path));
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {}
        Err(error) => return Err(naming(path)(error)),
    }
    // Nothing has this name, or it is a dangling link.
    let mut place = path.to_owned();
    while let Ok(target) = fs::read_link(&place) {
        place = folder_of(&place).join(target);
    }
    let folder =
        fs::canonicalize(folder_of(&place)).unwrap_or_else(|_| folder_of(&place).to_owned());
    Ok(place.file_name().map_or_else(|| place.clone(), |name| folder.join(name)))
}

/// Checks that `path` can be created or replaced, without changing it.
pub fn check(path: &Path) -> io::Result<()> {
    temporary(&place_of(path)?).map(drop).map_err(naming(path))
}

/// Prefixes an error's text with the file's name.
pub fn naming(path: &Path) -> impl Fn(io::Error) -> io::Error + Copy {
    move |error| io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

fn folder_of(path: &Path) -> &Path {
    path.parent().filter(|folder| !folder.as_os_str().is_empty()).unwrap_or(Path::new("."))
}

/// Flushes the folder of a renamed file: only then is its new name on disk.
pub fn flush_name(path: &Path) -> io::Result<()> {
    File::open(folder_of(path))?.sync_all()
}

/// Appends `ending` to the last component of a path.
pub fn sibling(path: &Path, ending: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(ending);
    name.into()
}

/// Creates a file in the same folder, since a rename cannot cross file systems. It is removed when
/// it is dropped.
fn temporary(path: &Path) -> io::Result<NamedTempFile> {
    let prefix = format!(".{}.", path.file_name().unwrap_or_default().to_string_lossy());
    let mut name = Builder::new();
    name.prefix(&prefix).suffix(".part");
    // With the permissions of any new file, which those of tempfile are not.
    name.make_in(folder_of(path), |path| File::create_new(path))
}

/// The SHA-256 of bytes, in hexadecimal.
pub fn sha256(bytes: &[u8]) -> String {
    hex(digest(&SHA256, bytes).as_ref())
}

/// Two digits for each byte.
pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
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

    #[test]
    fn a_file_is_replaced_and_nothing_else_is_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("a/b/file");
        write(&path, b"one").unwrap();
        write(&path, b"two").unwrap();
        assert_eq!(fs::read(&path).unwrap(), b"two");
        assert_eq!(fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    }

    #[test]
    fn a_link_stays_and_what_it_leads_to_is_replaced() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let (file, link) = (folder.path().join("there/file"), folder.path().join("link"));
        symlink("there/file", folder.path().join("second")).unwrap();
        symlink("second", &link).unwrap();
        // The first write goes through dangling links.
        for text in ["one", "two"] {
            write(&link, text.as_bytes()).unwrap();
            assert_eq!(fs::read_to_string(&file).unwrap(), text);
            assert!(fs::symlink_metadata(&link).unwrap().is_symlink());
            fs::set_permissions(&file, fs::Permissions::from_mode(0o640)).unwrap();
        }
        write(&link, b"three").unwrap();
        assert_eq!(fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o640);
        assert_eq!(place_of(&file).unwrap(), place_of(&link).unwrap());
    }

    #[test]
    fn what_is_not_a_regular_file_is_left_as_it_is() {
        let folder = tempfile::tempdir().unwrap();
        let (socket, link) = (folder.path().join("socket"), folder.path().join("link"));
        let _listener = std::os::unix::net::UnixListener::bind(&socket).unwrap();
        symlink("/dev/null", &link).unwrap();
        for (path, kind) in [
            (Path::new("/dev/null"), "a device"),
            (&link, "a device"),
            (&socket, "a socket"),
            (folder.path(), "a folder"),
        ] {
            let text = format!(
                "{}: is {kind} and not a regular file; it is left as it is",
                path.display()
            );
            assert_eq!(write(path, b"x").unwrap_err().to_string(), text);
            assert_eq!(check(path).unwrap_err().to_string(), text);
        }
        assert!(
            !fs::metadata("/dev/null").unwrap().is_file()
                && fs::symlink_metadata(&link).unwrap().is_symlink()
        );
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 2);
    }

    #[test]
    fn links_in_a_circle_are_an_error() {
        let folder = tempfile::tempdir().unwrap();
        let link = folder.path().join("link");
        symlink("link", &link).unwrap();
        assert!(
            write(&link, b"x").unwrap_err().to_string().starts_with(&link.display().to_string())
        );
    }

    #[test]
    fn a_file_that_cannot_be_written_is_named_and_not_left() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("taken");
        fs::create_dir_all(path.join("inner")).unwrap();
        let error = write(&path, b"x").unwrap_err().to_string();
        assert!(error.starts_with(&path.display().to_string()), "{error}");
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    }
}
