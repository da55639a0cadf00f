//! Facts about an operation that are not in its request type, and the macro that makes the
//! catalogue from one entry per operation. Owns nothing; any thread may read it.

use crate::caller::Role;
use crate::reply::Reply;

/// HTTP method of an operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
#[allow(clippy::upper_case_acronyms)] // as HTTP spells them
pub enum Method {
    /// Reads.
    GET,
    /// Creates or starts.
    POST,
    /// Sets one value.
    PUT,
    /// Changes some values.
    PATCH,
    /// Removes or ends.
    DELETE,
}

impl Method {
    /// Its name in a request line.
    pub const fn name(self) -> &'static str {
        match self {
            Self::GET => "GET",
            Self::POST => "POST",
            Self::PUT => "PUT",
            Self::PATCH => "PATCH",
            Self::DELETE => "DELETE",
        }
    }

    /// Whether all parameters are in the path and the query, because a body has no meaning.
    pub const fn has_no_body(self) -> bool {
        matches!(self, Self::GET | Self::DELETE)
    }
}

/// Effect of an operation on the pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Effect {
    /// Changes nothing.
    Read,
    /// Changes something that can be changed back.
    Change,
    /// Can lose data.
    Destroy,
}

impl Effect {
    /// Its name in documents.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Change => "change",
            Self::Destroy => "destroy",
        }
    }
}

/// Where an operation can be called.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// Over HTTP too. Path patterns are relative to `/api/v1`; `{field}` is a field of the request,
    /// and `{field*}` one that takes any number of parts of the path.
    Rest {
        /// The method.
        method: Method,
        /// The patterns, the most general first.
        paths: &'static [&'static str],
    },
    /// On the control socket only, for this reason.
    Socket(&'static str),
}

/// An entry of the catalogue.
#[derive(Debug)]
pub struct About {
    /// Name of the variant of the request type.
    pub variant: &'static str,
    /// Description for users of the interface, one line for each line of the source.
    pub doc: &'static str,
    /// Where it can be called.
    pub reach: Reach,
    /// Lowest role that may call it.
    pub needs: Role,
    /// Its effect on the pool.
    pub effect: Effect,
    /// Whether it starts work that continues after the answer: HTTP answers 202.
    pub is_long: bool,
    /// Commands that call it; none: it is for other interfaces.
    pub commands: &'static [&'static str],
    /// Text for the audit log, with `{field}` for fields of the request, or `{field|words}` with
    /// words for null. Every operation that changes something has one.
    pub audit: Option<&'static str>,
    /// Variant of its reply.
    pub reply: &'static str,
    /// Whether a reply is of that variant.
    pub is_answered_by: fn(&Reply) -> bool,
}

/// A part of a text for the audit log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum AuditPart {
    /// Words.
    Text(&'static str),
    /// A field of the request.
    Field {
        /// Its name.
        name: &'static str,
        /// Words for null; none: it is never null.
        null: Option<&'static str>,
    },
}

/// `CreateShare` as serde writes it: `create_share`.
pub(crate) fn snake_case(name: &str) -> String {
    let mut snake = String::new();
    for letter in name.chars() {
        if letter.is_ascii_uppercase() && !snake.is_empty() {
            snake.push('_');
        }
        snake.push(letter.to_ascii_lowercase());
    }
    snake
}

impl About {
    /// Name on the wire.
    pub fn op(&self) -> String {
        snake_case(self.variant)
    }

    /// Parts of its text for the audit log.
    pub(crate) fn audit_parts(&self) -> impl Iterator<Item = AuditPart> {
        let parts = self.audit.unwrap_or_default().split(['{', '}']).enumerate();
        parts.map(|(number, part)| match part.split_once('|') {
            _ if number % 2 == 0 => AuditPart::Text(part),
            Some((name, null)) => AuditPart::Field { name, null: Some(null) },
            None => AuditPart::Field { name: part, null: None },
        })
    }

    /// Method and path patterns; none: it is not reached over HTTP.
    pub const fn rest(&self) -> Option<(Method, &'static [&'static str])> {
        match self.reach {
            Reach::Rest { method, paths } => Some((method, paths)),
            Reach::Socket(_) => None,
        }
    }
}

/// Makes `Request` and [`CATALOGUE`](crate::CATALOGUE) from entries `Variant { fields } => Reply {
/// METHOD "/path" | "/path", Role, Effect [Long], ["command"], "audit" }`.
macro_rules! catalogue {
    ($(
        $(#[doc = $doc:literal])+
        $name:ident $({ $($fields:tt)* })? $(($inner:ty))?
        => $reply:ident {
            $reach:ident $place:literal $(| $also:literal)*, $needs:ident, $effect:ident $($long:ident)?,
            [$($command:literal),*] $(, $audit:literal)?
        }
    ),* $(,)?) => {
        /// A call of an operation on an open pool.
        #[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
        #[serde(tag = "op", rename_all = "snake_case", deny_unknown_fields)]
        pub enum Request {
            $( $(#[doc = $doc])+ $name $({ $($fields)* })? $(($inner))?, )*
        }

        #[allow(non_upper_case_globals)]
        mod entries {
            use super::*;
            $(
                pub(super) static $name: About = About {
                    variant: stringify!($name),
                    doc: concat!($($doc, "\n"),+),
                    reach: catalogue!(@reach $reach [$place $(, $also)*]),
                    needs: Role::$needs,
                    effect: Effect::$effect,
                    is_long: catalogue!(@long $($long)?),
                    commands: &[$($command),*],
                    audit: catalogue!(@audit $($audit)?),
                    reply: stringify!($reply),
                    is_answered_by: |reply| matches!(reply, Reply::$reply { .. }),
                };
            )*
        }

        /// All operations.
        pub static CATALOGUE: &[&About] = &[$(&entries::$name),*];

        impl Request {
            /// The entry of its operation.
            pub fn about(&self) -> &'static About {
                match self {
                    $( Self::$name { .. } => &entries::$name, )*
                }
            }
        }
    };
    (@reach socket [$why:literal]) => { Reach::Socket($why) };
    (@reach $method:ident [$($path:literal),+]) => { Reach::Rest { method: Method::$method, paths: &[$($path),+] } };
    (@long) => { false };
    (@long Long) => { true };
    (@audit) => { None };
    (@audit $text:literal) => { Some($text) };
}
pub(crate) use catalogue;
