// What a JSON Schema says of one argument.

/** The schema behind references and lists of one; `root` holds the definitions. */
export function resolved(schema, root) {
  if (schema.$ref) {
    const { $ref, ...rest } = schema;
    const found = $ref.replace(/^#\//, "").split("/").reduce((at, key) => at?.[decodeURIComponent(key)], root);
    return resolved({ ...(found ?? {}), ...rest }, root);
  }
  if (schema.allOf?.length === 1) {
    const { allOf, ...rest } = schema;
    return resolved({ ...allOf[0], ...rest }, root);
  }
  return schema;
}

/** The forms that a value may have, null left out. */
export function alternatives(schema, root) {
  const settled = resolved(schema, root);
  const options = settled.anyOf ?? settled.oneOf;
  if (!options) {
    if (!Array.isArray(settled.type)) return [settled];
    return settled.type.filter((type) => type !== "null").map((type) => ({ ...settled, type }));
  }
  return options.flatMap((option) => alternatives(option, root)).filter((option) => option.type !== "null");
}

/** A few words for a form, to choose it by. */
export function nameOf(schema, root) {
  const settled = resolved(schema, root);
  if (settled.enum || settled.const !== undefined) return "one of a list";
  if (settled.format === "token-id") return "token";
  if (settled.type === "array") {
    const inner = settled.items ? alternatives(settled.items, root) : [];
    if (inner.length === 1 && inner[0].type === "array") return "lists of token ids";
    return inner.length === 1 && inner[0].type === "integer" ? "token ids" : "list";
  }
  return { string: "text", integer: "whole number", boolean: "yes or no", object: "object" }[settled.type] ?? "number";
}

/** The limits of a number or a list, in words. */
export function limitsOf(schema) {
  const least = schema.minimum ?? schema.exclusiveMinimum;
  const most = schema.maximum ?? schema.exclusiveMaximum;
  if (least === undefined && most === undefined) return "";
  const low = schema.exclusiveMinimum !== undefined ? `above ${least}` : `${least}`;
  // Bounds of machine types say nothing to people.
  if (most === undefined || Math.abs(most) >= 2 ** 31) {
    return schema.exclusiveMinimum !== undefined ? low : `${least} or more`;
  }
  const high = schema.exclusiveMaximum !== undefined ? `below ${most}` : `${most}`;
  return least === undefined ? `up to ${high}` : `${low} to ${high}`;
}
