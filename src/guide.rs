// The links between the pages lead to files in the repository, and here to modules: links.txt comes
// first, and Markdown uses the first definition of a link.
#![doc = include_str!("guide/links.txt")]
#![doc = include_str!("guide/README.md")]

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/commands.md")]
pub mod commands {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/hangs.md")]
pub mod hangs {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/findings.md")]
pub mod findings {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/variables.md")]
pub mod variables {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/platforms.md")]
pub mod platforms {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/containers.md")]
pub mod containers {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/gpus.md")]
pub mod gpus {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/administrators.md")]
pub mod administrators {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/security.md")]
pub mod security {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/pytorch.md")]
pub mod pytorch {}

// Its programs are doctests, which need these features.
#[cfg(any(not(doctest), feature = "collective"))]
#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/rust.md")]
pub mod rust {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/collectives.md")]
pub mod collectives {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/programs.md")]
pub mod programs {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/launch.md")]
pub mod launch {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/comparison.md")]
pub mod comparison {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/test_results.md")]
pub mod test_results {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/wire_format.md")]
pub mod wire_format {}

#[doc = include_str!("guide/links.txt")]
#[doc = include_str!("guide/how_it_works.md")]
pub mod how_it_works {}
