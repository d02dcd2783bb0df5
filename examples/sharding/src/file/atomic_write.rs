//! Writes files atomically: a file is complete or does not exist.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};

use tempfile::{Builder, NamedTempFile};

use crate::file::regular_file;

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
        Ok(found) => match regular_file::other_kind(&found) {
            None => return fs::canonicalize(path).map_err(naming(path)),
            Some(kind) => {
                let reason = format!("{kind}; it is left as it is");
                return Err(naming(path)(io::Error::new(io::ErrorKind::InvalidInput, reason)));
            }
        },
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

#[cfg(test)]
mod tests {
    use super::*;

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
        use std::os::unix::fs::{PermissionsExt, symlink};
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
        std::os::unix::fs::symlink("/dev/null", &link).unwrap();
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
        std::os::unix::fs::symlink("link", &link).unwrap();
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
