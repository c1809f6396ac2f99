"use strict";

// The page is read-only. Behind a router, a request of the page would have a foreign Origin, which
// execd refuses; so nothing on the page offers to send a request or asks for a token.
const readOnly = {
  wrapComponents: {
    authorizeBtn: () => () => null,
    authorizeOperationBtn: (_, system) => () =>
      system.React.createElement("small", { title: "Needs the token, if one is set" }, "token"),
  },
};

// Swagger UI shows the extensions of a reply, as one line, but not those of its media types.
const extensions = {
  wrapComponents: {
    response: (Response, { React }) => (props) => {
      const contents = props.response.get("content");
      const events = contents && contents.map((content) => content.get("x-events")).find(Boolean);
      const response = events ? props.response.set("x-events", events) : props.response;
      return React.createElement(Response, { ...props, response });
    },
    ResponseExtension: (_, { React }) => ({ xKey, xVal }) =>
      React.createElement(
        "details",
        null,
        React.createElement("summary", null, `${xKey}: ${xVal.keySeq().join(", ")}`),
        React.createElement("pre", null, JSON.stringify(xVal, null, 2)),
      ),
  },
};

SwaggerUIBundle({
  dom_id: "#viewer",
  // Beside the folder of this script: a router may serve execd below any path.
  url: new URL("../openapi.json", document.currentScript.src).pathname,
  supportedSubmitMethods: [],
  validatorUrl: null, // else Swagger UI asks a server of its makers
  deepLinking: true,
  showExtensions: true,
  plugins: [readOnly, extensions],
});
