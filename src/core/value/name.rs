//! Looks up names, and reports unknown ones.

/// Why a text is not the name of a [`Launcher`](crate::Launcher) or a [`Target`](crate::Target).
///
/// ```
/// use mpienv::{Target, UnknownName};
///
/// let error: UnknownName = "cntk".parse::<Target>().unwrap_err();
/// let text = error.to_string();
/// assert!(text.starts_with("unknown program; choose one of torch, jax, mindspore, "));
/// ```
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("unknown {kind}; choose one of {}", .names.join(", "))]
pub struct UnknownName {
    kind: &'static str,
    names: Vec<&'static str>,
}

/// Prints and serializes types as their `name`.
macro_rules! shown_by_name {
    ($type:ty) => {
        impl std::fmt::Display for $type {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.name())
            }
        }

        impl serde::Serialize for $type {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.name())
            }
        }
    };
}
pub(crate) use shown_by_name;

/// Returns the item of `all` that has this name.
pub(crate) fn find<T: Copy>(
    kind: &'static str,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
    name: &str,
) -> Result<T, UnknownName> {
    let found = all.iter().copied().find(|&one| name_of(one) == name);
    found.ok_or_else(|| UnknownName { kind, names: all.iter().map(|&one| name_of(one)).collect() })
}
