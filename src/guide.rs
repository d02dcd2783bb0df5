// The links between the pages lead to files in the repository, and here to modules: links.txt comes
// first, and Markdown uses the first definition of a link.
#![doc = include_str!("guide/links.txt")]
#![doc = include_str!("guide/README.md")]

/// Makes a module of each page.
macro_rules! pages {
    ($($(#[$condition:meta])? $page:ident,)+) => {
        $(
            $(#[$condition])?
            #[doc = include_str!("guide/links.txt")]
            #[doc = include_str!(concat!("guide/", stringify!($page), ".md"))]
            pub mod $page {}
        )+
    };
}

pages! {
    commands,
    hangs,
    findings,
    variables,
    platforms,
    containers,
    gpus,
    administrators,
    security,
    pytorch,
    // Its programs are doctests, which need these features.
    #[cfg(any(not(doctest), feature = "collective"))]
    rust,
    collectives,
    programs,
    launch,
    comparison,
    test_results,
    wire_format,
    how_it_works,
}
